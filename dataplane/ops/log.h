// The log on stderr: one line a message, with the time and the level, or, where stderr is the
// journal's socket, with the priority that the journal stores (sd-daemon(3)).
//
// start_log() on the main thread, before other threads exist; set_log_level() on any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::dataplane {

void start_log(std::string_view level);
// False: there is no level of that name, and nothing changes. The levels are those of
// appliance.log_level.
bool set_log_level(std::string_view level);
std::string log_level();

// Whether stderr is the stream that the service manager describes by JOURNAL_STREAM, as
// "device:inode".
bool is_journal(int descriptor, const char* journal_stream) noexcept;

}  // namespace sluice::dataplane
