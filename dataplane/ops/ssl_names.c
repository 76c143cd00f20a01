// OpenSSL under the names by which civetweb opens it, libssl.so and libcrypto.so, which only
// Debian's package for developers has; and one function under its name of before OpenSSL 3:
// civetweb 1.15 of Debian 12 and 13 calls a null pointer without it, at the first connection. Each
// library is this file, linked to the OpenSSL that is installed, which has all the rest.
#include <openssl/ssl.h>

#undef SSL_get_peer_certificate
X509* SSL_get_peer_certificate(const SSL* connection);

X509* SSL_get_peer_certificate(const SSL* connection) {
  return SSL_get1_peer_certificate(connection);
}
