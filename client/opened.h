// What a join needs before there is a job: the membership, and the transports of its sessions.
#pragma once

#include <memory>
#include <vector>

#include "aggregator/base/status.h"
#include "client/job.h"
#include "client/progress.h"
#include "client/transport/inproc/served.h"

namespace sluice::client {

struct Opened {
  SessionOptions options;
  std::unique_ptr<ThreadPool> pool;  // where a session has work for it
  std::unique_ptr<Calls> calls;      // the membership: a Session or a Relay
  Driven* driven = nullptr;          // the same object
  Session* session = nullptr;        // the same object, or the first of its sessions
  std::vector<Progress::Line> lines;
  std::vector<std::shared_ptr<Served>> served;  // by this worker, for its neighbours
};

// BCube(n, 1) whose switch sums is one appliance, and a job there is like any other: its address
// becomes that one's. Over each the rank is known then, and the address that texts name. Fails for
// a BCube that cannot be, or with other than its n^k workers.
Status resolve(JoinRequest& request);

// May block: host names are resolved.
Result<Opened> open(const JoinRequest& request);

}  // namespace sluice::client
