#include "data/texts/decompressor.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <new>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

using namespace std::string_view_literals;

[[noreturn]] void refuse_damage(const char* reason) {
  throw DecompressorError(concat("is damaged (", reason, ")"), "fetch it again");
}

class Gzip final : public Decompressor {
 public:
  Gzip() {
    constexpr int kGzipAlone = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipAlone) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  Step step(std::string_view from, char* to, size_t room) override {
    if (at_end_ && !from.empty()) {
      ::inflateReset(&stream_);
      at_end_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));
    stream_.avail_in = static_cast<uInt>(std::min(from.size(), kMostAtOnce));
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(std::min(room, kMostAtOnce));
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    at_end_ = code == Z_STREAM_END;
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    // Z_BUF_ERROR: there was neither input nor room for output to continue.
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      refuse_damage(stream_.msg != nullptr ? stream_.msg : "not the data of gzip");
    }
    return {.read = static_cast<size_t>(reinterpret_cast<const char*>(stream_.next_in) - from.data()),
            .written = static_cast<size_t>(reinterpret_cast<char*>(stream_.next_out) - to)};
  }

 private:
  static constexpr size_t kMostAtOnce = 1 << 30;
  z_stream stream_{};
};

class Zstd final : public Decompressor {
 public:
  Zstd() : stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
    ::ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  Step step(std::string_view from, char* to, size_t room) override {
    ZSTD_inBuffer in{from.data(), from.size(), 0};
    ZSTD_outBuffer out{to, room, 0};
    const size_t left = ::ZSTD_decompressStream(stream_.get(), &out, &in);
    if (::ZSTD_isError(left)) {
      if (::ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge) {
        throw DecompressorError(
            concat("needs a window of more than ", 1 << (kLargestWindowLog - 20), " MiB to decompress"),
            "give its content as -, by zstdcat --long=31, or compress it again without --long and --ultra");
      }
      if (::ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation) throw std::bad_alloc();
      refuse_damage(::ZSTD_getErrorName(left));
    }
    at_end_ = left == 0;
    return {.read = in.pos, .written = out.pos};
  }

 private:
  /// Limit of the program zstd by default.
  static constexpr int kLargestWindowLog = 27;
  std::unique_ptr<ZSTD_DStream, decltype(&::ZSTD_freeDStream)> stream_;
};

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(std::string_view head) {
  if (head.starts_with("\x1f\x8b\x08"sv)) return std::make_unique<Gzip>();
  // A frame may follow a skippable one, 0x184D2A5?, as pzstd writes them.
  const bool is_skipped =
      head.size() >= 4 && (head[0] & 0xf0) == 0x50 && head.substr(1, 3) == "\x2a\x4d\x18"sv;
  if (head.starts_with("\x28\xb5\x2f\xfd"sv) || is_skipped) return std::make_unique<Zstd>();
  return nullptr;
}

}  // namespace fsdp::data
