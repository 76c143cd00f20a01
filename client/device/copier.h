// The thread that does what a CopyStage says: starts copies, asks which have ended, submits to the
// session what is in host memory.
//
// A thread of its own, because a call of a device's driver may take as long as many packets. It
// holds the session's lock between such calls only. With nothing to copy it sleeps until told.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "aggregator/base/time.h"
#include "client/device/copy_stage.h"
#include "client/device/device.h"
#include "client/device/far_work.h"
#include "client/shared_session.h"

namespace sluice::client {

class Copier {
 public:
  // `submit` hands a submission to the session, with the lock held. `who` begins texts of failures.
  // `shared` has the stage. `far`: null where no tensor is far.
  Copier(SharedSession& shared, const Device& device, FarWork* far,
         std::function<Status(const Submission&)> submit, std::string who);
  // Gives up what is not over, and waits a second at most for copies that run. The session's other
  // thread has ended.
  ~Copier();

 private:
  struct Running {
    CopyStage::Copy copy;
    sluice_device_mark* mark = nullptr;
  };

  void run();
  bool serve();
  void give_up_where_ended();
  void fail(const std::string& why);
  void look_for_work();
  void start(const CopyStage::Copy& copy);
  void ended(const CopyStage::Copy& copy, bool failed);
  bool work();
  void report();

  SharedSession& shared_;
  CopyStage& stage_;
  const Device& device_;
  FarWork* const far_;
  const std::function<Status(const Submission&)> submit_;
  const std::string who_;
  bool stop_ = false;  // under the lock
  TimeNs stop_by_ns_ = 0;
  // The thread's own.
  std::vector<CopyStage::Fence> fences_;  // to be asked about
  std::vector<CopyStage::Copy> starting_;
  std::vector<Running> running_;
  std::vector<std::uint32_t> passed_;    // tensors
  std::vector<CopyStage::Copy> copied_;  // that have ended
  std::string failure_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace sluice::client
