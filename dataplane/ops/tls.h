// Whether the HTTP server can encrypt.
//
// Main thread; before the server starts, which finds OpenSSL by what this loads (ssl_names.c).
#pragma once

#include <string>

namespace sluice::dataplane {

// Why a server can not use this file, which has a certificate and its key, for TLS; empty: it can.
std::string why_no_tls(const std::string& certificate);

}  // namespace sluice::dataplane
