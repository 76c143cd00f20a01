#include "dataplane/ops/pages.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <prometheus/text_serializer.h>

#include <string_view>

#include "dataplane/ops/health.h"

namespace sluice::dataplane {
namespace {

// Names of ports are letters, digits, '_' and '-' (config), but a page need not know that.
std::string in_html(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      default: result += letter;
    }
  }
  return result;
}

const char* words_of(int status) noexcept { return status == 200 ? "OK" : "Service Unavailable"; }

}  // namespace

HttpAnswer metrics_page(const MetricsCollector& collector) {
  return {.type = "text/plain; version=0.0.4; charset=utf-8",
          .body = prometheus::TextSerializer().Serialize(collector.Collect())};
}

HttpAnswer health_page(const MetricsCollector& collector) {
  if (collector.answers()) return {.body = "ok\n"};
  return {.status = 503, .body = "the box is ending\n"};
}

HttpAnswer ready_page(const MetricsCollector& collector) {
  const std::vector<std::string> reasons = collector.reasons();
  if (reasons.empty()) return {.body = "ready\n"};
  HttpAnswer answer{.status = 503};
  for (const std::string& reason : reasons) answer.body += reason + "\n";
  return answer;
}

HttpAnswer landing_page(const MetricsCollector& collector) {
  const std::string why = join_reasons(collector.reasons());
  return {.type = "text/html; charset=utf-8",
          .body = "<!doctype html><html lang=\"en\"><title>sluiced</title><h1>sluiced " +
                  std::string(version()) + "</h1><p>" +
                  (why.empty() ? "ready" : "not ready: " + in_html(why)) +
                  "</p><ul><li><a href=\"metrics\">metrics</a> for Prometheus</li>"
                  "<li><a href=\"healthz\">healthz</a>: the process lives</li>"
                  "<li><a href=\"readyz\">readyz</a>: the box can serve</li></ul></html>\n"};
}

bool Page::handleGet(CivetServer*, mg_connection* connection) {
  const HttpAnswer answer = make_(collector_);
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            answer.status, words_of(answer.status), answer.type.c_str(), answer.body.size());
  mg_write(connection, answer.body.data(), answer.body.size());
  return true;
}

PasswordCheck::PasswordCheck(const std::string& password) : expected_("Basic ") {
  std::string text(4 * (password.size() + 2) / 3 + 1, '\0');
  const int bytes = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                    reinterpret_cast<const unsigned char*>(password.data()),
                                    static_cast<int>(password.size()));
  expected_.append(text, 0, static_cast<std::size_t>(bytes));
}

bool PasswordCheck::authorize(CivetServer*, mg_connection* connection) {
  const char* header = mg_get_header(connection, "Authorization");
  const std::string_view given = header == nullptr ? "" : header;
  if (given.size() == expected_.size() &&
      CRYPTO_memcmp(given.data(), expected_.data(), given.size()) == 0)
    return true;
  mg_printf(connection,
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"sluiced\"\r\n"
            "Content-Length: 0\r\nConnection: close\r\n\r\n");
  return false;
}

}  // namespace sluice::dataplane
