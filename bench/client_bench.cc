// The cost of a session over UDP to its worker, beside the barest sender and receiver.
//
//     bench_client session|session-one|raw|raw-stored|raw-single TENSORS BYTES STEPS
//
// session: one rank of a job, TENSORS float32 tensors of BYTES bytes a step, over 127.0.0.1 to an
// appliance in a child process. session-one: the same, with only the first tensor submitted; the
// others cost a packet for 64 chunks. raw: datagrams of the same number and lengths, gathered from
// the same amount of memory into trains (UDP_SEGMENT, UDP_GRO), to a child that sends as many back;
// no payload is read, averaged or written beyond the receive buffer. raw-stored: each payload is
// copied to the place of one that was sent, as any sum must be. raw-single: without trains. The
// first step of five is not counted. Prints one line of JSON: the worker process's CPU time in ns,
// split as the kernel does, datagrams sent, wall time in seconds.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sluice/sluice.hpp>
#include <string>
#include <string_view>

#include "aggregator/appliance/appliance.h"
#include "aggregator/wire/packet.h"
#include "bench/trains.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

// What a packet of float32 gradients is at an MTU of 1,500 with one rank.
constexpr std::size_t kChunkBytes = 1344;
constexpr std::size_t kHeaderBytes = sizeof(wire::CommonHeader) + sizeof(wire::Contribution);
constexpr std::size_t kResultBytes = kChunkBytes + wire::result_overhead_bytes(1);
constexpr std::size_t kRawWindow = 1024;  // datagrams on their way

struct Shape {
  std::uint32_t tensors, bytes, steps;
  std::uint32_t warm_up() const noexcept { return (steps + 4) / 5; }
};

double ns_of(const timeval& time) { return time.tv_sec * 1e9 + time.tv_usec * 1e3; }

// From now on until print().
class Meter {
 public:
  Meter() { ::getrusage(RUSAGE_SELF, &before_); }
  void print(std::uint64_t packets) const {
    rusage after{};
    ::getrusage(RUSAGE_SELF, &after);
    const double wall = std::chrono::duration<double>(Clock::now() - start_).count();
    const double user = ns_of(after.ru_utime) - ns_of(before_.ru_utime);
    const double system = ns_of(after.ru_stime) - ns_of(before_.ru_stime);
    std::printf(
        "{\"cpu_ns\": %.0f, \"user_ns\": %.0f, \"system_ns\": %.0f, \"packets\": %llu, "
        "\"seconds\": %.4f}\n",
        user + system, user, system, static_cast<unsigned long long>(packets), wall);
  }

 private:
  rusage before_{};
  Clock::time_point start_ = Clock::now();
};

// ---- the other end, in a child ----

// Results wait here until there is a train of them.
class Outbox {
 public:
  Outbox(TrainSocket& socket, const sockaddr_in& to) : socket_(socket), to_(to) {
    for (std::size_t i = 0; i < kTrainDatagrams; ++i) slots_[i].resize(kMaxDatagramBytes);
  }
  void push(std::span<const std::uint8_t> bytes) {
    if (count_ == kTrainDatagrams || (count_ != 0 && bytes.size() > train_[0].bytes())) flush();
    std::memcpy(slots_[count_].data(), bytes.data(), bytes.size());
    train_[count_] = {{slots_[count_].data(), bytes.size()}, {}};
    ++count_;
    if (bytes.size() < train_[0].bytes()) flush();
  }
  void flush() {
    for (std::size_t sent = 0; sent < count_;) {
      const std::size_t taken = socket_.send({&train_[sent], count_ - sent}, to_);
      if (taken == 0) socket_.wait(1, true);
      sent += taken;
    }
    count_ = 0;
  }

 private:
  TrainSocket& socket_;
  const sockaddr_in& to_;
  std::array<std::vector<std::uint8_t>, kTrainDatagrams> slots_;
  std::array<Gathered, kTrainDatagrams> train_{};
  std::size_t count_ = 0;
};

TimeNs now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// An appliance of one shard on two sockets, for one worker.
[[noreturn]] void serve_appliance(TrainSocket& control, TrainSocket& data) {
  agg::Appliance appliance({.jobs = {.boot_key = {1}}});
  sockaddr_in worker{};
  Outbox control_out(control, worker), data_out(data, worker);
  std::vector<std::uint8_t> reply(kMaxDatagramBytes);
  for (;;) {
    const TimeNs now = now_ns();
    std::size_t count =
        control.receive([&](std::span<const std::uint8_t> bytes, const sockaddr_in& from) {
          wire::Packet packet;
          if (!ok(wire::parse(bytes, packet))) return;
          worker = from;
          const std::string address = "worker:" + std::to_string(ntohs(from.sin_port));
          const agg::Origin origin{
              .path = {}, .address = address, .max_datagram_bytes = kMaxDatagramBytes};
          const auto result = appliance.handle_control(packet, origin, reply, now);
          if (result.reply_bytes != 0) control_out.push({reply.data(), result.reply_bytes});
        });
    count += data.receive([&](std::span<const std::uint8_t> bytes, const sockaddr_in&) {
      wire::Packet packet;
      if (ok(wire::parse(bytes, packet))) appliance.handle_data(0, packet, false, now);
    });
    // A worker asks for the address of what it receives, not for the port.
    appliance.pump(now, [&](const agg::Transmit&, std::span<const std::uint8_t> bytes) {
      data_out.push(bytes);
    });
    control_out.flush();
    data_out.flush();
    if (count != 0) continue;
    std::array<pollfd, 2> ends{{{control.fd(), POLLIN, 0}, {data.fd(), POLLIN, 0}}};
    ::poll(ends.data(), ends.size(), 20);
  }
}

[[noreturn]] void serve_echo(TrainSocket& socket) {
  std::vector<std::uint8_t> bytes(kResultBytes);
  std::vector<Gathered> train(kTrainDatagrams, Gathered{bytes, {}});
  for (;;) {
    sockaddr_in worker{};
    std::size_t due = socket.receive(
        [&](std::span<const std::uint8_t>, const sockaddr_in& from) { worker = from; });
    if (due == 0) socket.wait(20);
    while (due != 0) {
      const std::size_t sent = socket.send({train.data(), std::min(due, kTrainDatagrams)}, worker);
      if (sent == 0) socket.wait(1, true);
      due -= sent;
    }
  }
}

// Never ends in the child.
template <class Serve>
pid_t in_child(Serve serve) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  serve();
  std::abort();
}

// ---- the worker's sides ----

void run_session(const Shape& shape, std::uint32_t used, std::uint16_t port) {
  Options options;
  options.address = "udp://127.0.0.1:" + std::to_string(port);
  options.job_name = "client";
  options.world_size = 1;
  options.chunk_bytes = kChunkBytes;
  std::vector<Tensor> tensors;
  std::vector<std::vector<float>> values(shape.tensors, std::vector<float>(shape.bytes / 4, 1.0f));
  for (std::uint32_t i = 0; i < shape.tensors; ++i)
    tensors.push_back({"t" + std::to_string(i), shape.bytes / 4});
  Job joined(options, tensors);
  sluice_job* const job = joined.get();
  const auto check = [job](sluice_status status) {
    if (status == SLUICE_OK) return;
    std::fprintf(stderr, "bench_client: %s\n", sluice_last_error(job));
    std::exit(1);
  };
  Meter meter;
  for (std::uint32_t step = 0; step < shape.steps; ++step) {
    if (step == shape.warm_up()) meter = Meter();
    const float value = static_cast<float>(step + 1);
    for (std::uint32_t i = 0; i < used; ++i) {
      values[i].front() = values[i].back() = value;
      check(sluice_submit(job, i, values[i].data(), values[i].data(), 1, 0));
    }
    check(sluice_end_step(job));
    for (std::uint32_t i = 0; i < used; ++i) {
      check(sluice_wait_tensor(job, i, 60'000, nullptr));
      if (values[i].front() == value && values[i].back() == value) continue;
      std::fprintf(stderr, "bench_client: a wrong sum in step %u\n", step + 1);
      std::exit(1);
    }
  }
  const std::uint64_t chunks = (shape.bytes + kChunkBytes - 1) / kChunkBytes;
  meter.print(chunks * used * (shape.steps - shape.warm_up()));
}

void run_raw(const Shape& shape, std::uint16_t port, bool trains, bool stored) {
  TrainSocket socket(0, trains);
  const sockaddr_in peer{.sin_family = AF_INET,
                         .sin_port = htons(port),
                         .sin_addr = {htonl(INADDR_LOOPBACK)},
                         .sin_zero = {}};
  const std::size_t chunks = shape.bytes / kChunkBytes * shape.tensors;
  std::vector<std::uint8_t> values(chunks * kChunkBytes, 1);
  std::array<std::uint8_t, kHeaderBytes> header{};
  std::vector<Gathered> train(kTrainDatagrams);
  Meter meter;
  for (std::uint32_t step = 0; step < shape.steps; ++step) {
    if (step == shape.warm_up()) meter = Meter();
    for (std::size_t sent = 0, back = 0; back < chunks;) {
      std::size_t room = std::min({chunks - sent, kTrainDatagrams, kRawWindow - (sent - back)});
      bool full = false;
      while (room != 0 && !full) {
        for (std::size_t i = 0; i < room; ++i)
          train[i] = {header, {&values[(sent + i) * kChunkBytes], kChunkBytes}};
        const std::size_t taken = socket.send({train.data(), room}, peer);
        full = taken == 0;
        sent += taken;
        room = std::min({chunks - sent, kTrainDatagrams, kRawWindow - (sent - back)});
      }
      std::uint8_t* next = &values[back * kChunkBytes];
      const std::size_t came =
          socket.receive([&](std::span<const std::uint8_t> bytes, const sockaddr_in&) {
            if (!stored) return;
            std::memcpy(next, bytes.last(kChunkBytes).data(), kChunkBytes);
            next += kChunkBytes;
          });
      if (came == 0) socket.wait(1000, full);
      back += came;
    }
  }
  meter.print(chunks * (shape.steps - shape.warm_up()));
}

int run(std::string_view side, const Shape& shape) {
  const bool trains = side != "raw-single";
  const bool session = side.starts_with("session");
  TrainSocket control(0, true);
  TrainSocket data(static_cast<std::uint16_t>(control.port() + 1), trains, false);
  if (!data.bound()) return run(side, shape);  // somebody has that port: another pair
  const pid_t child = in_child([&] {
    if (session) serve_appliance(control, data);
    serve_echo(data);
  });
  if (session)
    run_session(shape, side == "session" ? shape.tensors : 1, control.port());
  else
    run_raw(shape, data.port(), trains, side == "raw-stored");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const std::string_view side = argc == 5 ? argv[1] : "";
  if (!side.starts_with("session") && side != "raw" && side != "raw-stored" &&
      side != "raw-single") {
    std::fprintf(stderr,
                 "usage: bench_client session|raw|raw-stored|raw-single TENSORS BYTES STEPS\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  return sluice::bench::run(side, {number(2), number(3), number(4)});
}
