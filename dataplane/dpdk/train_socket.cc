#include "dataplane/dpdk/train_socket.h"

#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "dataplane/core/train.h"

namespace sluice::dataplane {
namespace {

// The header in front of each message. linux/virtio_net.h, which declares it, is not valid C++.
struct VirtioHeader {
  std::uint8_t flags;
  std::uint8_t gso_type;
  std::uint16_t header_bytes;
  std::uint16_t segment_bytes;
  std::uint16_t checksum_start;
  std::uint16_t checksum_offset;
};
static_assert(sizeof(VirtioHeader) == 10);
constexpr std::uint8_t kNeedsChecksum = 1;  // VIRTIO_NET_HDR_F_NEEDS_CSUM
constexpr std::uint8_t kUdpTrain = 5;       // VIRTIO_NET_HDR_GSO_UDP_L4, since Linux 6.2
// The size of the driver's own ring: more than a 2 MB queueing discipline holds.
constexpr int kBufferBytes = 4 << 20;
constexpr std::uint16_t kUdpChecksumAt = 6;  // in its header

// With an older kernel the driver sends single frames better, a burst in each call.
bool kernel_cuts_trains() noexcept {
  utsname system;
  int major = 0;
  int minor = 0;
  return uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 2));
}

std::size_t header_bytes(const rte_mbuf* frame) noexcept {
  return frame->l2_len + frame->l3_len + frame->l4_len;
}

// How many frames at the front make one train. The kernel cuts no train behind a VLAN tag.
std::size_t train_length(std::span<rte_mbuf* const> frames) noexcept {
  const rte_mbuf* first = frames.front();
  if (first->l2_len != wire::kEthernetBytes) return 1;
  const wire::Bytes headers = bytes_of(first).first(header_bytes(first));
  const std::size_t most =
      std::min(frames.size(), most_in_train(headers.size(), first->pkt_len - headers.size()));
  std::size_t count = 1;
  while (count < most && frames[count]->pkt_len == first->pkt_len &&
         same_headers(headers, bytes_of(frames[count])))
    ++count;
  return count;
}

// A message of the socket, until it is sent.
class Train {
 public:
  explicit Train(std::span<rte_mbuf* const> frames) noexcept {
    const rte_mbuf* first = frames.front();
    const std::size_t bytes = header_bytes(first);
    const std::size_t payload_bytes = first->pkt_len - bytes;
    std::memcpy(headers_.data(), bytes_of(first).data(), bytes);
    virtio_.header_bytes = static_cast<std::uint16_t>(bytes);
    virtio_.checksum_start = static_cast<std::uint16_t>(first->l2_len + first->l3_len);
    if (frames.size() > 1) {
      virtio_.gso_type = kUdpTrain;
      virtio_.segment_bytes = static_cast<std::uint16_t>(payload_bytes);
      lengthen({headers_.data(), bytes}, first->l2_len, first->l3_len,
               (frames.size() - 1) * payload_bytes);
    }
    add(&virtio_, sizeof virtio_);
    add(headers_.data(), bytes);
    for (const rte_mbuf* frame : frames) {
      add(rte_pktmbuf_mtod_offset(frame, void*, bytes), frame->data_len - bytes);
      if (const rte_mbuf* shared = frame->next; shared != nullptr)
        add(rte_pktmbuf_mtod(shared, void*), shared->data_len);
    }
  }
  bool send(int fd) noexcept {
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = count_;
    return sendmsg(fd, &message, MSG_DONTWAIT) >= 0;
  }

 private:
  void add(void* bytes, std::size_t count) noexcept { pieces_[count_++] = {bytes, count}; }

  VirtioHeader virtio_{.flags = kNeedsChecksum, .checksum_offset = kUdpChecksumAt};
  std::array<std::uint8_t, wire::kMaxUdpHeaderBytes> headers_;
  std::array<iovec, 2 + 2 * kBurst> pieces_;
  std::size_t count_ = 0;
};

}  // namespace

std::unique_ptr<TrainSocket> TrainSocket::open(const std::string& interface) noexcept {
  if (!kernel_cuts_trains()) return nullptr;
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);  // receives nothing
  if (fd < 0) return nullptr;
  std::unique_ptr<TrainSocket> opened(new TrainSocket(fd));
  const int on = 1;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  if (address.sll_ifindex == 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return nullptr;
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kBufferBytes, sizeof kBufferBytes) != 0)
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
  return opened;
}

bool TrainSocket::hide_outgoing(int driver_socket) noexcept {
  std::array<sock_filter, 4> code{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, PACKET_OUTGOING},
      {BPF_RET | BPF_K, 0, 0, 0},
      {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
  }};
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return setsockopt(driver_socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

TrainSocket::~TrainSocket() { close(fd_); }

std::size_t TrainSocket::send(std::span<rte_mbuf*> frames) noexcept {
  frames = frames.first(std::min<std::size_t>(frames.size(), kBurst));
  std::size_t sent = 0;
  while (sent < frames.size()) {
    const std::span rest = frames.subspan(sent);
    const std::size_t count = trains_ ? train_length(rest) : 1;
    if (!Train(rest.first(count)).send(fd_)) {
      if (errno == EAGAIN || errno == EINTR) break;
      if (count > 1 && (errno == EINVAL || errno == EIO)) {
        trains_ = false;
        continue;
      }
      // A queueing discipline was full, or the interface is down: lost, as on any link.
    }
    sent += count;
  }
  rte_pktmbuf_free_bulk(frames.data(), static_cast<unsigned>(sent));
  return sent;
}

}  // namespace sluice::dataplane
