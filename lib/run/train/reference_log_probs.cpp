#include "run/train/reference_log_probs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "base/util/error.h"
#include "data/loading/prefetch.h"
#include "data/tokens/preference_samples.h"
#include "data/tokens/sample_reader.h"
#include "data/tokens/stored_reference.h"
#include "data/tokens/stored_teacher.h"
#include "run/train/objective.h"
#include "run/train/run_parts.h"
#include "setup/config/checks.h"

namespace fsdp::train {
namespace {

/// The sets of files that a run opens together.
std::vector<std::vector<std::string>> sets_of(const data::DataOptions& options) {
  std::vector<std::vector<std::string>> sets;
  if (options.train_weights.empty()) {
    sets.push_back(options.train);
  } else {
    for (const std::string& entry : options.train) sets.push_back({entry});
  }
  if (!options.validation.empty()) sets.push_back(options.validation);
  return sets;
}

/// The batches of a loader by number.
class NumberedBatches final : public data::BatchSource {
 public:
  explicit NumberedBatches(const data::ValidationLoader& loader) : loader_(loader) {}
  data::Batch batch(int64_t index, int64_t /*micro_batch*/) const override { return loader_.batch(index); }

 private:
  const data::ValidationLoader& loader_;
};

/// Returns the numbers for the file beside a set: [documents], or with single rows [2 documents].
std::vector<double> references_of(const data::ValidationLoader& loader, const config::Config& config,
                                  const comm::Mesh& mesh, nn::Stage& model) {
  const auto& samples = dynamic_cast<const data::PreferenceSamples&>(loader.samples());
  const bool single = config.data.preference.rows == data::PreferenceRows::kSingle;
  const int64_t places = samples.num_documents() * (single ? 2 : 1);
  const at::Tensor sums = at::zeros({2, places}, at::kDouble);  // the numbers, and how many ranks have each
  data::PrefetchOptions prefetch = prefetch_options(config, mesh);
  prefetch.end = loader.num_batches();
  const NumberedBatches numbered(loader);
  const data::PrefetchingBatches batches(numbered, /*samples_per_micro_step=*/1, prefetch);
  PreferenceObjective objective(config, mesh, /*reference=*/nullptr);
  for (int64_t index = 0; index < loader.num_batches(); ++index) {
    const data::Batch batch = batches.batch(index, 0);
    const nn::LossOptions how{.cut = cut_sequence(config, mesh)};
    const auto put = [&](const at::Tensor& scores, int64_t documents_a_sample, int64_t offset) {
      const at::Tensor values = scores.cpu();
      for (int64_t i = 0; i < values.numel(); ++i) {
        const int64_t first = samples.first_document(loader.first_sample(index) + i / documents_a_sample);
        const int64_t place = single ? 2 * first + offset : first + i % documents_a_sample;
        sums[0][place] = values[i];
        sums[1][place] = 1;
      }
    };
    put(objective.references(model, batch, how), single ? 1 : 2, 0);
    if (batch.exchanged) put(objective.references(model, *batch.exchanged, how), 1, 1);
  }
  mesh.world()->check();
  mesh.world()->all_reduce(sums, comm::ReduceOp::kSum, {.unit = "log-probabilities"})->wait();
  std::vector<double> numbers;
  for (int64_t place = 0; place < places; ++place) {
    const double ranks = sums[1][place].item<double>();
    numbers.push_back(ranks == 0 ? std::numeric_limits<double>::quiet_NaN()
                                 : sums[0][place].item<double>() / ranks);
  }
  return numbers;
}

/// Writes the likeliest tokens of a teacher for each sample of a set, batch by batch. Collective.
std::filesystem::path write_teacher(const data::ValidationLoader& loader, const config::Config& config,
                                    const comm::Mesh& mesh, nn::Stage& teacher) {
  const auto& samples = dynamic_cast<const data::SampleReader&>(loader.samples());
  comm::Communicator& world = *mesh.world();
  std::optional<data::StoredTeacherWriter> writer;
  comm::agree(world, "file of the teacher", [&] {
    if (world.rank() != 0) return;
    writer.emplace(samples.files(),
                   data::stored_teacher_key(samples.files(), config.data, samples.document_separator()),
                   config.distillation.teacher_model);
  });
  data::PrefetchOptions prefetch = prefetch_options(config, mesh);
  prefetch.end = loader.num_batches();
  const NumberedBatches numbered(loader);
  const data::PrefetchingBatches batches(numbered, /*samples_per_micro_step=*/1, prefetch);
  const int64_t length = config.data.sequence_length, count = config.data.teacher.top_k;
  int64_t left = loader.num_samples();
  for (int64_t index = 0; index < loader.num_batches(); ++index) {
    const data::Batch batch = batches.batch(index, 0);
    const kernels::TeacherRows found = nn::teacher_rows(
        teacher, batch.inputs, {.documents = batch.document_starts}, count, config.data.teacher.temperature);
    // A record is one number of 8 bytes. Rows may be shorter than a sample, whose other inputs do not count.
    const int64_t rows = batch.inputs.size(0), own = batch.inputs.size(1);
    const at::Tensor mine = at::zeros({rows, length, count}, at::kLong);
    auto* records = reinterpret_cast<data::TeacherRecord*>(mine.mutable_data_ptr<int64_t>());
    const at::Tensor ids = found.ids.cpu().contiguous(), log_probs = found.log_probs.cpu().contiguous();
    for (int64_t i = 0; i < rows * own * count; ++i) {
      const int64_t row = i / (own * count), place = row * length * count + i % (own * count);
      records[place] = {static_cast<uint32_t>(ids.const_data_ptr<int64_t>()[i]),
                        std::min(log_probs.const_data_ptr<float>()[i], 0.0F)};
    }
    const at::Tensor all = at::empty({world.world_size() * mine.numel()}, at::kLong);
    world.all_gather(all, mine.flatten(), {.unit = "teacher's tokens"})->wait();
    comm::agree(world, "writing the teacher's tokens", [&] {
      const int64_t fit = std::min(left, rows * world.world_size());
      left -= fit;
      if (world.rank() != 0) return;
      const auto* first = reinterpret_cast<const data::TeacherRecord*>(all.const_data_ptr<int64_t>());
      writer->append({first, first + fit * length * count});
    });
  }
  comm::agree(world, "writing the teacher's tokens", [&] {
    if (writer) writer->finish();
  });
  return data::stored_teacher_path(samples.files());
}

}  // namespace

std::vector<std::filesystem::path> write_reference_log_probs(
    const config::Config& given, std::shared_ptr<comm::Communicator> communicator) {
  const at::NoGradGuard no_grad;
  config::Config config = given;
  config.lora = {};
  config.training.global_batch_size = 0;  // nothing is trained, so any world will do
  config.training.gradient_accumulation_steps = 1;
  config.data.preference.stored_reference = false;
  config.preference.reference = nn::ReferenceSource::kModel;
  config.distillation.teacher = nn::TeacherSource::kModel;
  const nn::Objective& objective = nn::objectives().get(config.training.objective, "training.objective");
  std::optional<config::SecondModel> second;
  comm::agree(*communicator, "set-up", [&] {
    if (!objective.has_reference && !objective.has_teacher) {
      fail(ErrorKind::kUsage,
           "training.objective must be one with a reference or a teacher, such as dpo, kto or ",
           "distill, but is ", config.training.objective, "; set it in the config");
    }
    if (objective.has_teacher &&
        (config.distillation.teacher_model.empty() || config.distillation.top_k == 0)) {
      fail(ErrorKind::kUsage,
           "distillation.teacher_model and distillation.top_k must be set, because the likeliest ",
           "tokens of that model are stored, but are \"", config.distillation.teacher_model, "\" and ",
           config.distillation.top_k, "; set both");
    }
    if (objective.has_teacher && config.data.dataset != data::kTokenFiles) {
      fail(ErrorKind::kUsage,
           "data.dataset must be \"token_files\" while a teacher's tokens are stored, which lie beside such ",
           "files, but is \"", config.data.dataset, "\"; tokenize the texts with fsdp-data");
    }
    second = config::second_model(config);
    if (second->config.model.init_from.empty()) {
      fail(ErrorKind::kUsage,
           "model.init_from must name the weights of the reference, but is empty; set it, or add "
           "preference.reference=model and preference.reference_model=PATH");
    }
    const comm::MeshShape shape = config::check_world(config, communicator->world_size());
    if (objective.has_teacher && shape.context > 1) {
      fail(ErrorKind::kUsage,
           "mesh.context must be 1 while a teacher's tokens are stored, sample by sample, but is ",
           shape.context, "; give the processes to mesh.data");
    }
  });
  const comm::Mesh mesh(config.mesh, communicator);
  const std::shared_ptr<const ShardedModel> sharded = build_second_model(*second, mesh);
  if (objective.has_teacher) {
    config.data.teacher = {.top_k = config.distillation.top_k,
                           .temperature = config.distillation.temperature};
    config.data.validation.clear();  // validations report the cross entropy
  }
  std::vector<std::filesystem::path> files;
  for (const std::vector<std::string>& entries : sets_of(config.data)) {
    config.data.validation = entries;
    config.evaluation.max_samples = 0;
    std::optional<data::ValidationLoader> loader;
    comm::agree(*communicator, "data", [&] { loader.emplace(open_validation_data(config, *communicator)); });
    if (objective.has_teacher) {
      files.push_back(write_teacher(*loader, config, mesh, *sharded->model));
      continue;
    }
    const std::vector<double> numbers = references_of(*loader, config, mesh, *sharded->model);
    const auto& token_files = dynamic_cast<const data::PreferenceSamples&>(loader->samples()).files();
    files.push_back(data::stored_reference_path(token_files));
    comm::agree(*communicator, "writing log-probabilities", [&] {
      if (communicator->rank() != 0) return;
      data::write_stored_reference(
          token_files,
          data::stored_reference_key(token_files, config.data.preference, config.data.sequence_length),
          second->config.model.init_from, numbers);
    });
  }
  return files;
}

}  // namespace fsdp::train
