// Fixture of the vhost-user transport's tests: it plays the plug-in, and has a socket that leads
// nowhere.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/wire/inet.h"
#include "client/fork.h"
#include "client/transport/dpdk/vhost.h"
#include "client/transport/dpdk/vhost_port.h"

// A port of the played plug-in: the frames of both directions.
struct sluice_dpdk_port {
  std::deque<std::vector<std::uint8_t>> to_worker;
  std::vector<std::vector<std::uint8_t>> from_worker;
  std::size_t lent = 0;  // not given back
  int times_opened = 0;
  int times_armed = 0;
  bool up = true;
  bool open = false;
};

namespace sluice::client {

inline constexpr wire::Mac kApplianceMac{{2, 9, 9, 9, 9, 9}};
inline const wire::IpAddress kAppliance = wire::ipv4_address(10, 0, 0, 1);

class VhostTest : public ::testing::Test {
 protected:
  VhostTest() {
    port() = {};
    std::strcpy(directory_, "/tmp/sluice-vhost-XXXXXX");
    EXPECT_NE(::mkdtemp(directory_), nullptr);
    path_ = std::string(directory_) + "/port0";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~VhostTest() override {
    ::unlink(path_.c_str());
    ::rmdir(directory_);
  }

  static sluice_dpdk_port& port() {
    static sluice_dpdk_port instance;
    return instance;
  }

  static sluice_dpdk_plugin plugin() {
    sluice_dpdk_plugin table{};
    table.abi = SLUICE_DPDK_PLUGIN_ABI;
    table.open = [](const sluice_dpdk_options*) {
      port().open = true;
      ++port().times_opened;
      return &port();
    };
    table.close = [](sluice_dpdk_port* opened) {
      opened->open = false;
      EXPECT_EQ(opened->lent, 0u) << "frames that nobody has given back";
    };
    table.error = []() -> const char* { return "refused"; };
    table.receive_capacity = [](const sluice_dpdk_port*) -> std::uint32_t { return 400; };
    table.rx_burst = [](sluice_dpdk_port* opened, sluice_dpdk_frame* frames, std::uint32_t count) {
      std::uint32_t received = 0;
      for (; received < count && !opened->to_worker.empty(); ++received) {
        auto* const held = new std::vector(std::move(opened->to_worker.front()));
        opened->to_worker.pop_front();
        frames[received] = {held->data(), static_cast<std::uint32_t>(held->size()), 0, nullptr,
                            held};
      }
      opened->lent += received;
      return received;
    };
    table.give_back = [](sluice_dpdk_port* opened, const sluice_dpdk_frame* frames,
                         std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i)
        delete static_cast<std::vector<std::uint8_t>*>(frames[i].buffer);
      opened->lent -= count;
    };
    table.tx_burst = [](sluice_dpdk_port* opened, const sluice_dpdk_frame* frames,
                        std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const sluice_dpdk_frame& frame = frames[i];
        auto& bytes = opened->from_worker.emplace_back(frame.data, frame.data + frame.bytes);
        bytes.insert(bytes.end(), frame.tail, frame.tail + frame.tail_bytes);
      }
      return count;
    };
    table.link_up = [](sluice_dpdk_port* opened) -> int { return opened->up; };
    table.rx_fd = [](sluice_dpdk_port*) { return -1; };
    table.arm = [](sluice_dpdk_port* opened, int armed) { opened->times_armed += armed; };
    return table;
  }

  VhostOptions options(const std::string& local = "") const {
    return {.host = "10.0.0.1",
            .port = 7700,
            .socket_path = path_,
            .local_address = local,
            .mtu_bytes = 1500,
            .rank = Rank{5}};
  }

  std::unique_ptr<Transport> open(const std::string& local = "") {
    auto transport = open_vhost_over(plugin_, options(local), Log(LogSink{}));
    EXPECT_TRUE(transport.ok()) << transport.status().message();
    return std::move(transport).value();
  }

  // The worker's ARP request, which is answered as the appliance answers it.
  static wire::ArpPacket answer_arp() {
    wire::Frame frame;
    EXPECT_FALSE(port().from_worker.empty());
    EXPECT_EQ(wire::parse_frame(port().from_worker.back(), wire::UdpChecksums::kVerify, frame),
              Verdict::kAccepted);
    const wire::ArpPacket request = wire::parse_arp(frame.payload).value();
    std::vector<std::uint8_t> reply(64);
    wire::encode_arp_frame(reply, request.sender_mac, wire::kNoVlan,
                           {.operation = wire::kArpReply,
                            .sender_mac = kApplianceMac,
                            .sender = kAppliance,
                            .target_mac = request.sender_mac,
                            .target = request.sender});
    port().to_worker.push_back(reply);
    port().from_worker.clear();
    return request;
  }

  sluice_dpdk_plugin plugin_ = plugin();
  OwnedFd socket_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  char directory_[32];
  std::string path_;
};

inline std::vector<std::uint8_t> udp_frame(const wire::UdpPath& path, std::size_t bytes) {
  std::vector<std::uint8_t> frame(wire::kMaxUdpHeaderBytes + bytes);
  const std::vector<std::uint8_t> payload(bytes, 0xab);
  frame.resize(wire::encode_udp_frame(frame, path, payload));
  return frame;
}

}  // namespace sluice::client
