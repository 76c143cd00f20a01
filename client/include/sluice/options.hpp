// What a join asks for, in C++: sluice_options and sluice_tensor, whose contracts are in sluice.h,
// with strings and functions of C++. sluice.hpp includes it.
#pragma once

#include <sluice/sluice.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace sluice {

struct Tensor {
  std::string name;
  std::uint64_t elem_count = 0;
  sluice_dtype dtype = SLUICE_FLOAT32;
  bool exact = false;         // SLUICE_TENSOR_EXACT
  bool dense = false;         // SLUICE_TENSOR_DENSE
  bool begins_layer = false;  // SLUICE_TENSOR_LAYER
};

// sluice_callback_options. Those on the progress thread must return soon and not wait.
struct Callbacks {
  std::function<void(sluice_log_level level, const char* text)> log;
  std::function<void(std::uint32_t tensor, sluice_status status)> on_tensor_done;
  std::function<void(const char* text)> on_stall;
  std::function<bool()> interrupted;
  sluice_log_level log_level = SLUICE_LOG_INFO;
};

// sluice_options with the defaults of sluice_options_init(). The members below take the place of
// its pointers, under their names; all others are C's: options.rank, options.prune.rule.
struct Options : sluice_options {
  Options() : sluice_options{} {
    struct_size = sizeof(sluice_options);
    sluice_options_init(this);
  }

  std::string address;
  std::string local_address;  // empty: chosen
  std::string job_name;
  std::string secret;                    // empty: none
  std::optional<std::string> trace_dir;  // absent: SLUICE_TRACE decides; empty: no trace
  Callbacks callbacks;

  // What sluice_join() takes. It points into this object, which must outlive the job.
  sluice_options raw() {
    sluice_options raw = *this;
    raw.address = address.c_str();
    raw.local_address = local_address.c_str();
    raw.job_name = job_name.c_str();
    raw.secret = secret.c_str();
    raw.trace_dir = trace_dir ? trace_dir->c_str() : nullptr;
    raw.callbacks.log_level = callbacks.log_level;
    raw.callbacks.user = &callbacks;
    if (callbacks.log)
      raw.callbacks.log = [](void* user, sluice_log_level level, const char* text) {
        static_cast<Callbacks*>(user)->log(level, text);
      };
    if (callbacks.on_tensor_done)
      raw.callbacks.on_tensor_done = [](void* user, std::uint32_t tensor, sluice_status status) {
        static_cast<Callbacks*>(user)->on_tensor_done(tensor, status);
      };
    if (callbacks.on_stall)
      raw.callbacks.on_stall = [](void* user, const char* text) {
        static_cast<Callbacks*>(user)->on_stall(text);
      };
    if (callbacks.interrupted)
      raw.callbacks.interrupted = [](void* user) -> int {
        return static_cast<Callbacks*>(user)->interrupted();
      };
    return raw;
  }
};

}  // namespace sluice
