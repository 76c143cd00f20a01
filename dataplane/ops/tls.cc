#include "dataplane/ops/tls.h"

#include <dlfcn.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>

namespace sluice::dataplane {
namespace {

// Of the build tree, else as installed; both are beside this program.
bool load_names() {
  std::error_code unknown;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
  for (const auto& folder : {here / "tls", here / SLUICE_TLS_FOLDER})
    if (dlopen((folder / "libcrypto.so").c_str(), RTLD_NOW) != nullptr &&
        dlopen((folder / "libssl.so").c_str(), RTLD_NOW) != nullptr)
      return true;
  return false;
}

}  // namespace

std::string why_no_tls(const std::string& certificate) {
  if (!load_names()) return "this sluiced was installed without its folder " SLUICE_TLS_FOLDER;
  const std::unique_ptr<BIO, decltype(&BIO_free)> file(BIO_new_file(certificate.c_str(), "r"),
                                                       BIO_free);
  if (file == nullptr) return std::string("it can't be read (") + std::strerror(errno) + ")";
  char no_passphrase[] = "";  // instead of a question on the terminal
  const std::unique_ptr<X509, decltype(&X509_free)> first(
      PEM_read_bio_X509(file.get(), nullptr, nullptr, no_passphrase), X509_free);
  if (first == nullptr) return "it has no certificate as PEM; append it";
  (void)BIO_reset(file.get());
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(file.get(), nullptr, nullptr, no_passphrase), EVP_PKEY_free);
  if (key == nullptr) return "it has no key as PEM without a passphrase; append it";
  if (X509_check_private_key(first.get(), key.get()) != 1)
    return "its key is not that of its first certificate; order them from the server's own on";
  return "";
}

}  // namespace sluice::dataplane
