#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "base/util/error.h"
#include "state/checkpoint/save_parts.h"
#include "state/manifest/digest.h"
#include "state/weights/shard_file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFullPurpose = "full checkpoint";
constexpr int64_t kRoundBytes = int64_t{64} << 20;         ///< bytes of all ranks together in a round
constexpr int64_t kSmallestShareBytes = int64_t{1} << 20;  ///< bytes of one rank in a round, in large worlds

/// Elements of a tensor that are sent in one round.
struct SentPiece {
  const std::string* name = nullptr;
  int64_t begin = 0;  ///< first element in the flattened tensor
  int64_t count = 0;
  int64_t place = 0;    ///< index of the first element among the rank's elements of the tensor
  int64_t at_byte = 0;  ///< offset in the rank's share of the round
  int64_t bytes = 0;
};

/// The pieces that one rank sends in each round. Every rank computes the itineraries of all ranks.
using Itinerary = std::vector<std::vector<SentPiece>>;

Itinerary plan_rank(const Manifest& held, size_t rank, int64_t share_bytes) {
  Itinerary rounds(1);
  int64_t filled = 0;
  for (const auto& [name, entry] : held.tensors) {
    const auto itemsize = static_cast<int64_t>(c10::elementSize(entry.dtype));
    const auto file = static_cast<int64_t>(rank);
    const RangeQuery own{.file_begin = file, .file_end = file + 1};
    for_each_range(entry.ranges, own, [&](const util::Rectangle& part, size_t, const RangeEntry& range) {
      const int64_t length = part.length(), columns = entry.numel / entry.rows;
      for (int64_t done = 0; done < part.numel();) {
        const int64_t row = part.row_begin + done / length, column = done % length;
        int64_t count = std::min(length - column, (share_bytes - filled) / itemsize);
        if (count == 0) {
          rounds.emplace_back();
          filled = 0;
          continue;
        }
        rounds.back().push_back({&name, row * columns + part.begin + column, count, range.offset + done,
                                 filled, count * itemsize});
        filled += count * itemsize;
        done += count;
      }
    });
  }
  return rounds;
}

/// Describes what all ranks hold, with rank r as "file" r. Collective. Throws Error(kCheckpoint) if the
/// slices do not add up.
Manifest gather_descriptions(const SaveRequest& request, const std::map<std::string, RankTensor>& tensors,
                             comm::Communicator& communicator) {
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<std::string> texts = comm::all_gather_text(
      communicator, described(entries_of(tensors, rank)).dump(), {.unit = kFullPurpose});
  Manifest held{.step = request.step, .world_size = 1, .layout = "full"};
  comm::agree(communicator, kFullPurpose, [&] {
    for (const std::string& text : texts) {
      held.files.push_back({.name = concat("rank ", held.files.size()), .bytes = 0, .xxh3_64 = {}});
      add_described(held.tensors, json::parse(text));
    }
    complete_manifest(held, (request.root / step_folder_name(request.step)).string());
  });
  return held;
}

std::vector<DatasetSpec> whole_datasets(const Manifest& held) {
  std::vector<DatasetSpec> specs;
  for (const auto& [name, entry] : held.tensors) {
    if (entry.numel > 0) specs.push_back({name, entry.dtype, entry.numel});
  }
  return specs;
}

/// Copies this rank's data of a piece.
void copy_piece(const SentPiece& piece, const std::map<std::string, RankTensor>& tensors, char* to) {
  int64_t place = piece.place;
  for (const shard::TensorSlice* slice : tensors.at(*piece.name).slices) {
    if (place < slice->numel()) {
      const auto size = static_cast<int64_t>(c10::elementSize(slice->dtype()));
      return for_each_piece(*slice, place, piece.count, [&](int64_t first, int64_t count, const void* data) {
        std::memcpy(to + (first - place) * size, data, static_cast<size_t>(count * size));
      });
    }
    place -= slice->numel();
  }
  FSDP_CHECK(false, *piece.name, " has no element ", piece.place);
}

/// Sends all slices to rank 0, which writes them to `file`.
class Transfer {
 public:
  Transfer(const Manifest& held, const std::map<std::string, RankTensor>& tensors,
           comm::Communicator& communicator)
      : tensors_(tensors), communicator_(communicator) {
    const int world = communicator.world_size();
    const int64_t most = std::max(kRoundBytes / 2 / world, kSmallestShareBytes / 2);
    for (int rank = 0; rank < world; ++rank) {
      itineraries_.push_back(plan_rank(held, static_cast<size_t>(rank), most));
      const Itinerary& itinerary = itineraries_.back();
      rounds_ = std::max(rounds_, itinerary.size());
      for (const auto& round : itinerary) {
        if (!round.empty()) share_bytes_ = std::max(share_bytes_, round.back().at_byte + round.back().bytes);
      }
    }
  }

  /// Sends all pieces. `file` is null except on rank 0. Collective.
  void run(ShardFileWriter* file) {
    const int rank = communicator_.rank(), world = communicator_.world_size();
    at::Tensor mine = communicator_.allocate_on_host(share_bytes_, at::kByte);
    at::Tensor all = communicator_.allocate_on_host(share_bytes_ * world, at::kByte);
    for (size_t round = 0; round < rounds_; ++round) {
      for (const SentPiece& piece : pieces(rank, round)) {
        copy_piece(piece, tensors_, static_cast<char*>(mine.data_ptr()) + piece.at_byte);
      }
      communicator_.all_gather(all, mine, {.unit = kFullPurpose})->wait();
      comm::agree(communicator_, kFullPurpose, [&] {
        if (!file) return;
        for (int from = 0; from < world; ++from) {
          const char* share = static_cast<const char*>(all.const_data_ptr()) + from * share_bytes_;
          for (const SentPiece& piece : pieces(from, round)) {
            file->write(*piece.name, piece.begin, piece.count, share + piece.at_byte);
          }
        }
      });
    }
  }

 private:
  const std::vector<SentPiece>& pieces(int rank, size_t round) const {
    static const std::vector<SentPiece> none;
    const Itinerary& itinerary = itineraries_[static_cast<size_t>(rank)];
    return round < itinerary.size() ? itinerary[round] : none;
  }

  const std::map<std::string, RankTensor>& tensors_;
  comm::Communicator& communicator_;
  std::vector<Itinerary> itineraries_;
  size_t rounds_ = 0;
  int64_t share_bytes_ = 1;  // at least 1, because collectives may not be empty
};

/// The manifest that a world of one would write.
Manifest whole_manifest(const SaveRequest& request, Manifest held, FileEntry file) {
  held.training = request.training;
  held.model = request.model;
  held.files = {std::move(file)};
  for (auto& [name, entry] : held.tensors) {
    entry.ranges.clear();
    entry.rows = 1;
    if (entry.numel > 0) entry.ranges.push_back({.part = {0, entry.numel}, .file = 0});
  }
  return held;
}

}  // namespace

SavedCheckpoint save_full(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                          comm::Communicator& communicator) {
  const fs::path folder = request.root / step_folder_name(request.step);
  const bool first = communicator.rank() == 0;
  communicator.check();
  const std::map<std::string, RankTensor> tensors = group_by_tensor(slices);
  Manifest held = gather_descriptions(request, tensors, communicator);
  comm::agree(communicator, kFullPurpose, [&] {
    if (first) create_step_folder(request, folder, 1);
  });
  SavedCheckpoint saved{.folder = folder};
  or_remove_folder(communicator, folder, [&] {
    std::unique_ptr<ShardFileWriter> file;
    comm::agree(communicator, kFullPurpose, [&] {
      if (first) {
        file =
            std::make_unique<ShardFileWriter>(temporary_name(folder / kFullFileName), whole_datasets(held));
      }
    });
    Transfer(held, tensors, communicator).run(file.get());
    FileEntry entry;
    comm::agree(communicator, kFullPurpose, [&] {
      if (first)
        entry = write_named(folder / kFullFileName, [&](const fs::path&) {
          file->finish();
          if (request.in_the_middle) request.in_the_middle();
        });
    });
    comm::agree(communicator, kFullPurpose, [&] {
      if (first) saved = commit(request, whole_manifest(request, std::move(held), std::move(entry)), folder);
    });
  });
  return saved;
}

}  // namespace fsdp::checkpoint
