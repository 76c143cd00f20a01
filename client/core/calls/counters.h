// The counters of one membership: one table, from which the structs here and in the C interface,
// its names, and Python's dictionary come.
#pragma once

#include <cstdint>

namespace sluice::client {

// X(name, help). They only grow, but for five facts. sluice.h lists them in
// the same order, which abi_questions.cc checks.
#define SLUICE_CLIENT_COUNTERS(X)                                                                \
  X(packets_sent, "datagrams that left")                                                         \
  X(packets_received, "datagrams that came")                                                     \
  X(bytes_sent, "UDP payload that left")                                                         \
  X(bytes_received, "UDP payload that came")                                                     \
  X(retransmissions, "contributions sent again")                                                 \
  X(probes, "questions about chunks")                                                            \
  X(results_pulled, "results that came because they were asked for")                             \
  X(duplicate_results, "results that were here already")                                         \
  X(non_finite_results, "packets of an average with a NaN or an infinity")                       \
  X(nil_contributions, "contributions without data")                                             \
  X(invalid_packets, "datagrams that are malformed, or of another job")                          \
  X(send_errors, "datagrams that the operating system did not take")                             \
  X(steps_done, "the last finished step")                                                        \
  X(non_finite_inputs,                                                                           \
    "of non_finite_results, those to which this rank sent a NaN or an "                          \
    "infinity")                                                                                  \
  X(delivered_chunks, "chunks of gradients in the sum of their own step")                        \
  X(late_chunks, "chunks of gradients not in the sum of their own step")                         \
  X(requeued_chunks, "late chunks in the sum of a later step")                                   \
  X(discarded_chunks, "late chunks that are dropped, too stale, or of which nobody knows")       \
  X(cancelled_bytes, "gradients that were not sent because the result was there first")          \
  X(resyncs, "states received from another rank")                                                \
  X(receive_credit_packets, "results that the transport can buffer")                             \
  X(chunk_bytes, "gradient bytes a packet")                                                      \
  X(shards, "of the appliance")                                                                  \
  X(segmented_packets, "of packets_sent, those that the kernel cut from a train")                \
  X(coalesced_packets, "of packets_received, those that the kernel handed over in a train")      \
  X(kept_chunks, "late chunks that went back into the residual, to leave with a later gradient") \
  X(suspended_ns, "nanoseconds that waits for a store's layers have blocked")                    \
  X(oldest_request_iterations,                                                                   \
    "iterations by which the oldest request to a store that has not left is behind, now")        \
  X(detours, "times that another switch of a BCube's level stood in for this rank's own")        \
  X(detoured_lanes, "lanes of a BCube that are on such another switch now")                      \
  X(receive_drops,                                                                               \
    "datagrams, or trains of them, that came and found no room; they are asked for as lost")     \
  X(appliance_restarts, "times that the job went on after its appliance had come back")

struct Counters {
#define X(name, help) std::uint64_t name = 0;
  SLUICE_CLIENT_COUNTERS(X)
#undef X

  Counters& operator+=(const Counters& other) noexcept {
#define X(name, help) name += other.name;
    SLUICE_CLIENT_COUNTERS(X)
#undef X
    return *this;
  }
};

// What goes one way: all of an ordinary membership, or a thread of a BCube at one level.
struct PartCounters {
  std::uint32_t thread = 0;
  std::uint32_t level = 0;
  Counters counters;
};

}  // namespace sluice::client
