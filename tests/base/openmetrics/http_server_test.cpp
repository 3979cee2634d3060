#include "base/openmetrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <list>
#include <stdexcept>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/system.h"
#include "support/http_client.h"

namespace fsdp::openmetrics {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::http_answer;
using testing::HttpConnection;
using ::testing::Not;
using ::testing::StartsWith;

HttpPage echo(std::string_view accept) { return {"text/plain", "accepts:" + std::string(accept) + "\n"}; }

TEST(HttpServer, ServesItsPageToGetAndHead) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  EXPECT_EQ(http_answer(server.port(), "/metrics", "Accept: a/b;q=1\r\naCCEPT: c/d\r\nX: y\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 22\r\nConnection: close\r\n\r\n"
            "accepts: a/b;q=1, c/d\n");
  for (const char* target : {"/metrics?collect[]=x", "http://localhost:9400/metrics"}) {
    EXPECT_THAT(http_answer(server.port(), target), StartsWith("HTTP/1.1 200 OK\r\n")) << target;
  }
  EXPECT_EQ(http_answer(server.port(), "/metrics", "", "HEAD"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nConnection: close\r\n\r\n");
  HttpConnection with_newlines_alone(server.port());
  with_newlines_alone.send("GET /metrics HTTP/1.0\n\n");
  EXPECT_THAT(with_newlines_alone.read_all(), EndsWith("accepts:\n"));
}

TEST(HttpServer, RefusesEverythingElse) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  const auto answer = [&](const std::string& bytes) {
    HttpConnection connection(server.port());
    connection.send(bytes);
    return connection.read_all();
  };
  const std::string end = "\r\nHost: x\r\n\r\n";
  for (const char* target : {"/", "/metricsx", "/metrics/", "/../etc/passwd", "http://x", "/%6Detrics"}) {
    EXPECT_THAT(http_answer(server.port(), target), StartsWith("HTTP/1.1 404 ")) << target;
  }
  EXPECT_THAT(http_answer(server.port(), "/", "", "HEAD"), EndsWith("\r\n\r\n"));
  for (const char* method : {"POST", "DELETE", "OPTIONS", "GETS", "TRACE"}) {
    const std::string refused = http_answer(server.port(), "/metrics", "", method);
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(refused, HasSubstr("\r\nAllow: GET, HEAD\r\n")) << method;
  }
  EXPECT_THAT(answer("PRI * HTTP/2.0" + end), StartsWith("HTTP/1.1 505 "));
  for (const std::string& garbage :
       {"GET" + end, "GET /metrics" + end, "GET /metrics x" + end, "GET  /metrics HTTP/1.1" + end,
        "get /metrics HTTP/1.1" + end, std::string("\x16\x03\x01\x02\x00\x01", 6), std::string("\0", 1),
        std::string("\n\n"), std::string("A\n\n")}) {
    EXPECT_THAT(answer(garbage), StartsWith("HTTP/1.1 400 ")) << garbage;
  }
}

TEST(HttpServer, TakesABoundedRequest) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  const std::string begin = "GET /metrics HTTP/1.1\r\nX: ";
  const size_t longest = HttpLimits().request_bytes;
  {
    HttpConnection fits(server.port());
    fits.send(begin + std::string(longest - begin.size() - 4, 'x') + "\r\n\r\n");
    EXPECT_THAT(fits.read_all(), StartsWith("HTTP/1.1 200 "));
  }
  HttpConnection endless(server.port());
  endless.send(begin);
  const int64_t before = util::resident_bytes();
  const std::string chunk(1 << 16, 'x');
  int64_t sent = 0;
  while (sent < 1 << 28 && endless.send(chunk)) sent += 1 << 16;
  EXPECT_LT(sent, 1 << 28);
  EXPECT_LT(util::resident_bytes() - before, 32 << 20);
  EXPECT_THAT(http_answer(server.port(), "/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, AnswerReachesAClientThatSendsABodyNobodyReads) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  HttpConnection connection(server.port());
  connection.send("POST /metrics HTTP/1.1\r\nContent-Length: 30000\r\n\r\n" + std::string(30000, 'x'));
  EXPECT_THAT(connection.read_all(), StartsWith("HTTP/1.1 405 "));
}

TEST(HttpServer, IdleConnectionsKeepNobodyOut) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo, {.connections = 4, .request_seconds = 600});
  std::list<HttpConnection> idle;
  for (int i = 0; i < 20; ++i) {
    idle.emplace_back(server.port());
    idle.back().send("GET /metr");
  }
  EXPECT_THAT(http_answer(server.port(), "/metrics"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(idle.front().read_all(), "");  // closed in favour of later ones
}

TEST(HttpServer, ClosesASlowConnectionInTime) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo, {.request_seconds = 0.3});
  HttpConnection slow(server.port());
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000 && slow.send("G"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double seconds = util::seconds_since(began);
  EXPECT_EQ(slow.read_all(), "");
  EXPECT_LT(seconds, 10);
  HttpConnection silent(server.port());
  EXPECT_EQ(silent.read_all(), "");
}

TEST(HttpServer, ClosesAConnectionThatTakesNoAnswer) {
  const std::string large(64 << 20, 'x');
  const HttpServer server("127.0.0.1", 0, "/metrics",
                          [&](std::string_view) {
                            return HttpPage{"text/plain", large};
                          },
                          {.request_seconds = 0.5});
  HttpConnection stalled(server.port());
  stalled.send("GET /metrics HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_LT(stalled.read_all().size(), large.size());
}

TEST(HttpServer, SendsALargePageInParts) {
  const std::string large(64 << 20, 'x');
  const HttpServer server("127.0.0.1", 0, "/metrics",
                          [&](std::string_view) {
                            return HttpPage{"text/plain", large};
                          },
                          {.request_seconds = 600});
  EXPECT_THAT(http_answer(server.port(), "/metrics"), EndsWith("\r\n\r\n" + large));
}

TEST(HttpServer, ManyRequestsTakeLittleOfAProcessor) {
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  // Of this thread, and of all: the rest is the server's.
  const auto processor_seconds = [](int who) {
    rusage usage{};
    ::getrusage(who, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  };
  const double all_before = processor_seconds(RUSAGE_SELF), mine_before = processor_seconds(RUSAGE_THREAD);
  const auto began = std::chrono::steady_clock::now();
  std::list<HttpConnection> connections;
  while (util::seconds_since(began) < 1) {
    connections.emplace_back(server.port());
    connections.back().send("GET /metrics HTTP/1.1\r\n\r\n");
    if (connections.size() > 200) connections.pop_front();
  }
  const double of_server =
      processor_seconds(RUSAGE_SELF) - all_before - (processor_seconds(RUSAGE_THREAD) - mine_before);
  EXPECT_LT(of_server, 0.5 * util::seconds_since(began));
  EXPECT_THAT(http_answer(server.port(), "/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, GoesOnAfterAPageThatFails) {
  std::atomic<int> calls = 0;
  const HttpServer server("127.0.0.1", 0, "/metrics", [&](std::string_view accept) {
    if (calls++ == 0) throw std::runtime_error("no page");
    return echo(accept);
  });
  EXPECT_EQ(http_answer(server.port(), "/metrics"), "");
  EXPECT_THAT(http_answer(server.port(), "/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, ListensAtItsAddressAloneUntilItEnds) {
  int port = 0;
  {
    const HttpServer server("127.0.0.1", 0, "/metrics", echo);
    port = server.port();
    const HttpServer elsewhere("127.0.0.2", port, "/metrics", echo);
    EXPECT_EQ(elsewhere.port(), port);
  }
  EXPECT_THROW(HttpConnection{port}, std::runtime_error);
  const HttpServer again("127.0.0.1", port, "/metrics", echo);  // at once, although connections were closed
  EXPECT_THAT(http_answer(port, "/metrics"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, NamesWhyItCannotListen) {
  const auto refused = [](const std::string& host, int port) -> std::string {
    try {
      const HttpServer server(host, port, "/metrics", echo);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  };
  const HttpServer server("127.0.0.1", 0, "/metrics", echo);
  EXPECT_EQ(refused("127.0.0.1", server.port()),
            concat("cannot listen at 127.0.0.1 port ", server.port(), ": another program listens there"));
  EXPECT_THAT(refused("203.0.113.7", 9400), HasSubstr(": this machine has no such address"));
  EXPECT_THAT(refused("no such host", 9400), StartsWith("cannot listen at no such host port 9400: "));
}

}  // namespace
}  // namespace fsdp::openmetrics
