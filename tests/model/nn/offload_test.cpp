#include "model/nn/offload.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/tensor/storage.h"
#include "base/tensor/tensor_memory.h"
#include "base/util/error.h"
#include "model/kernels/meta.h"
#include "model/nn/decoder.h"
#include "model/nn/recompute.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace offload_test {

using testing::make_initialized;

constexpr OffloadOptions kOnCpu{.least_bytes = 1, .everywhere = true};

/// Hooks all blocks; `is_moved` by number.
void offload_blocks(
    Stage& model, const OffloadOptions& options, bool recomputed,
    const std::function<bool(size_t)>& is_moved = [](size_t) { return true; }) {
  const auto host = make_host_activations(options);
  size_t number = 0;
  for (const auto& [name, stage] : outermost_stages(model, {"block"})) {
    stage->attach(std::make_shared<Offload>(host, is_moved(number++)));
    if (recomputed) stage->attach(std::make_shared<Recompute>());
  }
}

void expect_equal_gradients(const Stage& found, const Stage& expected) {
  auto gradients = expected.named_parameters();
  for (const auto& parameter : found.named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().equal(gradients[parameter.key()].grad())) << parameter.key();
  }
}

struct Way {
  const char* name;
  bool recomputed;
  int64_t patience;
  std::function<bool(size_t)> is_moved = [](size_t) { return true; };
};
const Way kWays[] = {{"inputs", true, 1},
                     {"inputs, later", true, 2},
                     {"everything", false, 1},
                     {"everything of every second stage", false, 2, [](size_t n) { return n % 2 == 0; }},
                     {"nothing", false, 1, [](size_t) { return false; }}};

TEST(Offload, ChangesNoBitOfLossAndGradients) {
  for (const std::string& family : testing::family_names()) {
    nn::ModelOptions options = testing::family_options(family);
    options.num_hidden_layers = std::max<int64_t>(3, options.num_hidden_layers);
    for (const Way& way : kWays) {
      SCOPED_TRACE(family + ": " + way.name);
      const auto plain = make_initialized(options), moved = make_initialized(options);
      OffloadOptions offload = kOnCpu;
      offload.patience = way.patience;
      offload_blocks(*moved, offload, way.recomputed, way.is_moved);
      for (const int64_t row : {0, 2}) {  // the second micro-batch accumulates
        const at::Tensor rows = testing::token_rows(row, 2, 8, options.vocab_size);
        const at::Tensor expected = testing::loss_of(*plain, rows), found = testing::loss_of(*moved, rows);
        EXPECT_TRUE(found.equal(expected));
        expected.backward();
        found.backward();
      }
      expect_equal_gradients(*moved, *plain);
    }
  }
}

TEST(Offload, WorksWithComposedOperations) {
  nn::ModelOptions options = testing::tiny_options();
  options.fused_kernels = false;
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto plain = make_initialized(options), moved = make_initialized(options);
    offload_blocks(*moved, kOnCpu, way.recomputed, way.is_moved);
    const at::Tensor rows = testing::token_rows(0, 2, 8, options.vocab_size);
    const at::Tensor expected = testing::loss_of(*plain, rows), found = testing::loss_of(*moved, rows);
    EXPECT_TRUE(found.equal(expected));
    expected.backward();
    found.backward();
    expect_equal_gradients(*moved, *plain);
  }
}

/// Doubles its input; its backward needs both its input and its result.
class SavingStage final : public Stage {
 public:
  explicit SavingStage(int64_t size) : weight_(register_parameter("weight", at::ones({size}))) {}
  std::string type_name() const override { return "block"; }
  at::Tensor& weight() { return weight_; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext&) override { return (x * weight_).tanh(); }

 private:
  at::Tensor weight_;
};

/// Stages that are run one after another, all of them hooked.
struct Chain {
  std::shared_ptr<HostActivations> host;
  std::vector<std::shared_ptr<SavingStage>> stages;

  Chain(int64_t length, int64_t size, const OffloadOptions& options) : host(make_host_activations(options)) {
    for (int64_t i = 0; i < length; ++i) {
      stages.push_back(std::make_shared<SavingStage>(size));
      stages.back()->attach(std::make_shared<Offload>(host, true));
    }
  }
  /// Returns the last output; `storages` are those of all, which may have been freed.
  at::Tensor run(std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) {
    at::Tensor x = at::ones({stages.front()->weight().numel()}) * stages.front()->weight();
    for (const auto& stage : stages) {
      x = stage->forward(x);
      storages.emplace_back(
          c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(x.storage().unsafeGetStorageImpl()));
    }
    return x;
  }
};

TEST(Offload, FreesTheDevicesMemoryWhenSoManyStagesHaveRun) {
  for (const int64_t patience : {1, 2}) {
    OffloadOptions options = kOnCpu;
    options.patience = patience;
    Chain chain(5, 1024, options);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    const at::Tensor output = chain.run(storages);
    for (int64_t i = 0; i < 5; ++i) {
      // The result of a stage is saved by it and by the next one, in whose name it is not copied again.
      EXPECT_EQ(storages[static_cast<size_t>(i)].expired(), i < 5 - patience) << patience << ", " << i;
    }
    output.sum().backward();
  }
}

TEST(Offload, KeepsParametersWhereTheyAre) {
  Chain chain(2, 1024, kOnCpu);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  const at::Tensor output = chain.run(storages);
  chain.stages[1]->weight().data().fill_(0);  // unseen by autograd, so that backward has the new values
  output.sum().backward();
  EXPECT_TRUE(chain.stages[0]->weight().grad().equal(at::zeros({1024})));
}

TEST(Offload, RefusesAParameterThatWasModifiedAfterForward) {
  Chain chain(1, 1024, kOnCpu);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  const at::Tensor output = chain.run(storages);
  {
    const at::NoGradGuard no_grad;
    chain.stages[0]->weight().mul_(2);
  }
  try {
    output.sum().backward();
    FAIL() << "not refused";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("modified in place after forward"), std::string::npos);
  }
}

TEST(Offload, UsesHostMemoryAgain) {
  Chain chain(6, 100'000, kOnCpu);
  const auto step = [&chain] {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    chain.run(storages).sum().backward();
  };
  step();
  const util::TensorMemory memory;
  step();
  // On the device at once: two stages' results, their gradients and a product; six would be in host memory.
  EXPECT_LT(memory.peak_bytes(), 9 * 100'000 * 4);
  EXPECT_LE(memory.live_bytes(), 0);
}

TEST(Offload, HostMemoryOfOtherSizesIsFreed) {
  const auto host = make_host_activations(kOnCpu);
  const util::TensorMemory memory;
  for (const int64_t size : {200'000, 100'000, 300'000, 50'000}) {
    SavingStage stage(size);
    stage.attach(std::make_shared<Offload>(host, true));
    (stage.forward(at::ones({size})) * 1).sum().backward();
    // What two contents of the largest size need, as much unused memory as one, the weight and its gradient.
    EXPECT_LE(memory.live_bytes(), (2 + 1 + 2) * 4 * 300'000) << size;
  }
}

TEST(Offload, ABackwardThatNeverComesLeavesNothing) {
  Chain chain(4, 1024, kOnCpu);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  chain.run(storages).reset();
  for (const auto& storage : storages) EXPECT_TRUE(storage.expired());
  chain.run(storages).sum().backward();
}

TEST(Offload, TwoForwardPassesMayPrecedeTheirBackward) {
  Chain chain(3, 1024, kOnCpu), plain(3, 1024, kOnCpu);
  for (const auto& stage : plain.stages) stage->detach_hooks();
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  (chain.run(storages).sum() + chain.run(storages).sum()).backward();
  (plain.run(storages).sum() + plain.run(storages).sum()).backward();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(chain.stages[i]->weight().grad().equal(plain.stages[i]->weight().grad()));
  }
}

TEST(Offload, BackwardMayRunTwice) {
  Chain chain(3, 1024, kOnCpu);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  const at::Tensor loss = chain.run(storages).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = chain.stages[0]->weight().grad().clone();
  loss.backward();
  EXPECT_TRUE(chain.stages[0]->weight().grad().equal(2 * once));
}

/// What a pass on a planned GPU copies.
struct PlannedCopies {
  std::vector<int64_t> bytes;  ///< by number
  std::vector<int64_t> waited;
  int64_t on_host = 0, most_on_host = 0;

  kernels::MetaDevice device() {
    return {.type = c10::kCUDA,
            .copies = {.begin =
                           [this](int64_t size) {
                             bytes.push_back(size);
                             return static_cast<int64_t>(bytes.size()) - 1;
                           },
                       .wait = [this](int64_t number) { waited.push_back(number); },
                       .keep =
                           [this](int64_t size) {
                             on_host += size;
                             most_on_host = std::max(most_on_host, on_host);
                           }}};
  }
};

/// Runs a chain of five stages on a planned GPU, and backward if wanted.
void run_planned(PlannedCopies& copies, const std::function<void(Stage&)>& hook, bool backward) {
  const kernels::MetaDevice device = copies.device();
  const kernels::MetaDeviceGuard guard(device);
  testing::ChainStage chain(5, 8);
  for (const at::Tensor& parameter : chain.parameters()) {
    util::point_at(parameter, at::empty_like(parameter, parameter.options().device(at::kMeta)));
  }
  hook(chain);
  const at::Tensor output = chain.forward(at::empty({4, 8}, at::TensorOptions(at::kFloat).device(at::kMeta)));
  if (backward) output.sum().backward();
}

TEST(Offload, MovesOneInputForEachRecomputedStage) {
  const auto hook = [](Stage& chain) {
    offload_blocks(chain, {.least_bytes = 1}, /*recomputed=*/true, [](size_t number) { return number != 4; });
  };
  constexpr int64_t kInput = 4 * 8 * 4;
  PlannedCopies copies;
  run_planned(copies, hook, /*backward=*/true);
  EXPECT_EQ(copies.bytes, std::vector<int64_t>(8, kInput));
  EXPECT_EQ(copies.waited, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(copies.on_host, 0);
  EXPECT_EQ(copies.most_on_host, 4 * kInput);
  PlannedCopies forward;
  run_planned(forward, hook, /*backward=*/false);
  EXPECT_EQ(forward.bytes, std::vector<int64_t>(4, kInput));
  EXPECT_EQ(forward.on_host, 0) << "no backward comes";
}

TEST(Offload, OffloadActivationsRecomputesAndKeepsTheLastInput) {
  PlannedCopies copies;
  run_planned(
      copies, [](Stage& chain) { offload_activations(chain, {"block"}, {.least_bytes = 1}); }, false);
  EXPECT_EQ(copies.bytes, std::vector<int64_t>(4, 4 * 8 * 4));
}

TEST(Offload, DoesNothingOnCpusAndWithoutAutograd) {
  nn::ModelOptions options = testing::tiny_options();
  const auto model = make_initialized(options);
  offload_blocks(*model, {.least_bytes = 1}, /*recomputed=*/false);
  const at::Tensor rows = testing::token_rows(0, 2, 8, options.vocab_size);
  testing::loss_of(*model, rows).backward();
  const auto moving = make_initialized(options);
  offload_blocks(*moving, kOnCpu, /*recomputed=*/false);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(testing::loss_of(*moving, rows).equal(testing::loss_of(*model, rows)));
}

}  // namespace offload_test
}  // namespace fsdp::nn
