// A stranger that floods: frames of one kind from eth0 at the full speed of one core.
//
//     e2e_flood join|garbage|arp|echo TO_MAC TO_ADDRESS SECONDS
//
// Source addresses vary (10.77.128.0/17), as a forger's do, in sound frames with right checksums.
// It ends after SECONDS or at SIGTERM and prints the number of frames sent. Needs root.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace {

using namespace sluice;

constexpr std::size_t kFrames = 512;  // different ones, sent in turn
constexpr std::size_t kBatch = 64;
constexpr std::size_t kEchoBytes = 64;

volatile sig_atomic_t stopped = 0;

wire::IpAddress source_of(std::size_t index) {
  return wire::ipv4_address(10, 77, static_cast<std::uint8_t>(128 + index / 250),
                            static_cast<std::uint8_t>(1 + index % 250));
}

std::vector<std::uint8_t> join_packet(std::size_t index) {
  wire::Join join{.nonce = 0x1234'5678'9abc'0000 + index, .run_id = 1, .world_size = 2};
  join.layouts[0] = {.hash = 1, .chunk_count = 10, .max_elems = 256};
  join.chunk_bytes = 1024;
  join.has_proof = 1;
  join.name_bytes = 5;
  std::memcpy(join.name, "flood", 5);
  std::vector<std::uint8_t> bytes(1500);
  bytes.resize(wire::encode(bytes, {}, join));
  return bytes;
}

std::vector<std::uint8_t> udp_frame(const wire::UdpPath& path,
                                    const std::vector<std::uint8_t>& payload) {
  std::vector<std::uint8_t> bytes(wire::kMaxUdpHeaderBytes + payload.size());
  bytes.resize(wire::encode_udp_frame(bytes, path, payload));
  return bytes;
}

// A UDP frame of the same length, made an ICMP echo request.
std::vector<std::uint8_t> echo_frame(const wire::UdpPath& path) {
  std::vector<std::uint8_t> bytes =
      udp_frame(path, std::vector<std::uint8_t>(kEchoBytes - wire::kUdpBytes, 0x5a));
  std::uint8_t* ip = &bytes[wire::kEthernetBytes];
  std::uint8_t* icmp = ip + wire::kIpv4Bytes;
  ip[9] = wire::kProtoIcmp;
  std::memset(ip + 10, 0, 2);
  const std::uint16_t ip_sum = wire::finish_checksum(wire::sum_bytes({ip, wire::kIpv4Bytes}));
  std::memcpy(ip + 10, &ip_sum, 2);
  std::memset(icmp, 0, wire::kIcmpBytes);
  icmp[0] = 8;
  const std::uint16_t sum = wire::finish_checksum(wire::sum_bytes({icmp, kEchoBytes}));
  std::memcpy(icmp + 2, &sum, 2);
  return bytes;
}

std::vector<std::uint8_t> arp_frame(const wire::UdpPath& path) {
  std::vector<std::uint8_t> bytes(64);
  bytes.resize(wire::encode_arp_frame(bytes, path.dst_mac, wire::kNoVlan,
                                      {.operation = wire::kArpRequest,
                                       .sender_mac = path.src_mac,
                                       .sender = path.src,
                                       .target_mac = {},
                                       .target = path.dst}));
  return bytes;
}

std::vector<std::uint8_t> make_frame(const std::string& kind, wire::UdpPath path,
                                     std::size_t index) {
  path.src = source_of(index);
  path.src_port = static_cast<std::uint16_t>(20'000 + index);
  if (kind == "join") return udp_frame(path, join_packet(index));
  if (kind == "garbage") return udp_frame(path, std::vector<std::uint8_t>(200, 0xa5));
  if (kind == "arp") return arp_frame(path);
  if (kind == "echo") return echo_frame(path);
  std::fprintf(stderr, "kind %s: join, garbage, arp or echo\n", kind.c_str());
  std::exit(2);
}

int open_interface(wire::Mac& own) {
  const int fd = ::socket(AF_PACKET, SOCK_RAW, 0);  // sends only
  ifreq request{};
  std::strcpy(request.ifr_name, "eth0");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = static_cast<int>(::if_nametoindex("eth0"));
  if (fd < 0 || ::ioctl(fd, SIOCGIFHWADDR, &request) != 0 ||
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::perror("eth0");
    std::exit(2);
  }
  std::memcpy(own.bytes.data(), request.ifr_hwaddr.sa_data, own.bytes.size());
  return fd;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  wire::UdpPath path{.dst = {wire::Family::kIpv4, {}}, .dst_port = kDefaultPort};
  auto& mac = path.dst_mac.bytes;
  if (std::sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3],
                  &mac[4], &mac[5]) != 6 ||
      ::inet_pton(AF_INET, argv[3], path.dst.bytes.data()) != 1)
    return 2;
  const int fd = open_interface(path.src_mac);
  std::vector<std::vector<std::uint8_t>> frames;
  for (std::size_t index = 0; index < kFrames; ++index)
    frames.push_back(make_frame(argv[1], path, index));

  std::array<iovec, kFrames> parts;
  std::array<mmsghdr, kFrames> messages{};
  for (std::size_t index = 0; index < kFrames; ++index) {
    parts[index] = {frames[index].data(), frames[index].size()};
    messages[index].msg_hdr.msg_iov = &parts[index];
    messages[index].msg_hdr.msg_iovlen = 1;
  }
  ::signal(SIGTERM, [](int) { stopped = 1; });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[4]));
  unsigned long long sent = 0;
  for (std::size_t at = 0; stopped == 0 && std::chrono::steady_clock::now() < end;
       at = (at + kBatch) % kFrames) {
    const int count = ::sendmmsg(fd, &messages[at], kBatch, 0);
    sent += count > 0 ? static_cast<unsigned long long>(count) : 0;
  }
  std::printf("{\"sent\": %llu}\n", sent);
  return 0;
}
