// The copier thread, which carries out what a CopyStage decides: it starts copies, asks the device
// which have ended, and submits a tensor to the session once its bytes are in host memory.
//
// It is a thread of its own because a call of a device's driver may take as long as many packets.
// It holds the session's lock only between such calls. With nothing to copy it sleeps until it is
// notified.
#pragma once

#include <functional>
#include <optional>
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
  // `shared` has the stage. `submit` hands a submission to the session, with the lock held. `who`
  // begins the texts of failures. `far` is null where no tensor is far.
  Copier(SharedSession& shared, Device& device, FarWork* far,
         std::function<Status(const Submission&)> submit, std::string who);
  // Gives up the submissions that are not over, and waits a second at most for the copies that run.
  // The job's progress thread has ended before.
  ~Copier();

 private:
  struct Running {
    CopyStage::Copy copy;
    sluice_device_mark* mark = nullptr;
  };

  static constexpr std::uint32_t kAllTensors = UINT32_MAX;
  struct Failure {
    std::uint32_t tensor = kAllTensors;
    std::string why;
  };

  void run();
  bool serve();
  void give_up_where_ended();
  void fail(const std::string& why);
  void look_for_work();
  void start(CopyStage::Copy copy);
  void ended(const CopyStage::Copy& copy, bool failed);
  bool work();
  void report();

  SharedSession& shared_;
  CopyStage& stage_;
  Device& device_;
  FarWork* const far_;
  const std::function<Status(const Submission&)> submit_;
  const std::string who_;
  bool stop_ = false;  // under the lock
  TimeNs stop_by_ns_ = 0;
  // The thread's own.
  std::vector<CopyStage::Fence> fences_;  // to ask the device about
  std::vector<CopyStage::Copy> starting_;
  std::vector<Running> running_;
  std::vector<std::uint32_t> passed_;    // tensors
  std::vector<CopyStage::Copy> copied_;  // that have ended
  std::optional<Failure> failure_;       // the first
  std::thread thread_;                   // last: uses all of the above
};

}  // namespace sluice::client
