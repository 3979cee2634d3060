// The kernels of losses for GPUs, emulated, against double precision and against those of the CPU.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/kernels/cuda/losses.cuh"
#include "model/kernels/row_kernels.h"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

struct Terms {
  float label_smoothing = 0, z_loss = 0;
};

class CudaLosses : public OfType {
 protected:
  /// Losses [rows] and, in place of the logits, gradients / counted.
  static void run(Buffer& logits, const Buffer& targets, Buffer& losses, const Buffer& counted,
                  const Terms& terms, bool differentiates) {
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&logits, &losses}, [&](const EmulatedLaunch& launch) {
        cuda::losses<T>(launch, arguments(logits, targets, losses, counted, terms, differentiates));
      });
    });
  }
  static LossRows arguments(const Buffer& logits, const Buffer& targets, const Buffer& losses,
                            const Buffer& counted, const Terms& terms, bool differentiates) {
    return {.logits = logits.data(),
            .stride = logits.values().size(1),
            .targets = targets.data<int64_t>(),
            .losses = losses.data<double>(),
            .counted = counted.data<double>(),
            .rows = targets.values().numel(),
            .vocabulary = logits.values().size(1),
            .differentiates = differentiates,
            .label_smoothing = terms.label_smoothing,
            .z_loss = terms.z_loss};
  }

  static at::Tensor expected_losses(const at::Tensor& logits, const at::Tensor& targets, const Terms& terms) {
    const at::Tensor log_all = at::logsumexp(logits, -1), counts = targets != kIgnored;
    const at::Tensor plain = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, kIgnored,
                                                    static_cast<double>(terms.label_smoothing));
    return (plain + static_cast<double>(terms.z_loss) * log_all.square()).masked_fill(~counts, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaLosses, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

TEST_P(CudaLosses, AndGradientsAreThoseOfTheFormulaAndOfTheCpu) {
  constexpr int64_t kRows = 5;
  const Buffer counted(at::full({1}, 3.0, at::kDouble));
  for (int64_t vocabulary : {1, 2, 7, 8, 31, 1000, 8192, 20'001}) {
    for (const Terms& terms : {Terms{}, Terms{0.1F, 0}, Terms{0.2F, 0.01F}}) {
      SCOPED_TRACE(vocabulary);
      const at::Tensor scores = random({kRows, vocabulary}) * 3;
      at::Tensor target = at::randint(vocabulary, {kRows}, at::kLong);
      target[1] = kIgnored;
      target[2] = vocabulary - 1;
      const Buffer targets(target);
      Buffer logits(scores), losses({kRows}, at::kDouble);
      run(logits, targets, losses, counted, terms, /*differentiates=*/true);

      at::Tensor S = scores.to(at::kDouble).requires_grad_();
      const at::Tensor expected = expected_losses(S, target, terms);
      (expected.sum() / 3).backward();
      expect_near(losses.values(), expected.detach(), "losses", 2e-6);
      expect_near(logits.values(), S.grad(), "gradients", type() == at::kFloat ? 1e-5 : 0);

      Buffer cpu_logits(scores), cpu_losses({kRows}, at::kDouble);
      cpu_row_kernels(element()).losses(arguments(cpu_logits, targets, cpu_losses, counted, terms, true));
      expect_near(losses.values(), cpu_losses.values(), "losses of the CPU", 2e-6);
      expect_near(logits.values(), cpu_logits.values(), "gradients of the CPU",
                  type() == at::kFloat ? 1e-5 : 0);
    }
  }
}

TEST_P(CudaLosses, OfRowsThatAreFartherApartAreThoseOfEachAlone) {
  constexpr int64_t kRows = 3, kVocabulary = 1001, kStride = 1024;
  const at::Tensor scores = random({kRows, kVocabulary}) * 3;
  const Buffer targets(at::tensor({5, -100, 1000}, at::kLong)), counted(at::full({1}, 2.0, at::kDouble));
  at::Tensor wide = at::full({kRows, kStride}, 9, type());
  wide.narrow(1, 0, kVocabulary).copy_(scores);
  Buffer logits(wide), losses({kRows}, at::kDouble), cpu_logits(wide), cpu_losses({kRows}, at::kDouble);
  const auto of_wide = [&](const Buffer& some, const Buffer& to) {
    LossRows rows = arguments(some, targets, to, counted, {}, /*differentiates=*/true);
    rows.vocabulary = kVocabulary;
    return rows;
  };
  with_type([&]<typename T>(T) {
    run_under_all_schedules({&logits, &losses}, [&](const EmulatedLaunch& launch) {
      cuda::losses<T>(launch, of_wide(logits, losses));
    });
  });
  cpu_row_kernels(element()).losses(of_wide(cpu_logits, cpu_losses));
  for (int64_t row = 0; row < kRows; ++row) {
    const Buffer target(targets.values().narrow(0, row, 1));
    const auto expect_same = [&](const Buffer& found, const Buffer& found_losses, const auto& run_alone) {
      Buffer alone(scores.narrow(0, row, 1)), loss({1}, at::kDouble);
      run_alone(arguments(alone, target, loss, counted, {}, /*differentiates=*/true));
      const at::Tensor of_row = found.values().narrow(0, row, 1);
      EXPECT_TRUE(have_equal_bits(of_row.narrow(1, 0, kVocabulary).contiguous(), alone.values())) << row;
      EXPECT_TRUE(have_equal_bits(found_losses.values().narrow(0, row, 1), loss.values())) << row;
      EXPECT_TRUE(of_row.narrow(1, kVocabulary, kStride - kVocabulary).eq(9).all().item<bool>()) << row;
    };
    expect_same(logits, losses, [](const LossRows& rows) {
      with_type([&]<typename T>(T) { cuda::losses<T>(EmulatedLaunch(), rows); });
    });
    expect_same(cpu_logits, cpu_losses,
                [](const LossRows& rows) { cpu_row_kernels(element()).losses(rows); });
  }
}

/// RowStatistics [rows, 4] of all columns from those of parts.
at::Tensor combined(const std::vector<at::Tensor>& parts) {
  const at::Tensor all = at::stack(parts), most = all.select(2, 0), top = most.amax(0);
  const at::Tensor sum = (all.select(2, 1) * (most - top).exp()).sum(0);
  return at::stack({top, sum, all.select(2, 2).sum(0), all.select(2, 3).sum(0)}, 1);
}

TEST_P(CudaLosses, OfPartsOfTheVocabularyAreThoseOfTheWhole) {
  constexpr int64_t kRows = 5, kVocabulary = 1001, kFirst = 400;
  const Buffer counted(at::full({1}, 3.0, at::kDouble));
  const at::Tensor scores = random({kRows, kVocabulary}) * 3;
  const Buffer targets(at::tensor({5, -100, 1000, 399, 400}, at::kLong));
  for (const Terms& terms : {Terms{}, Terms{0.2F, 0.01F}}) {
    for (bool on_cpu : {false, true}) {
      const auto run_losses = [&](const LossRows& rows) {
        if (on_cpu) return cpu_row_kernels(element()).losses(rows);
        with_type([&]<typename T>(T) { cuda::losses<T>(EmulatedLaunch(), rows); });
      };
      Buffer whole(scores), expected({kRows}, at::kDouble);
      run_losses(arguments(whole, targets, expected, counted, terms, true));
      std::vector<Buffer> parts;
      parts.emplace_back(scores.narrow(1, 0, kFirst).contiguous());
      parts.emplace_back(scores.narrow(1, kFirst, kVocabulary - kFirst).contiguous());
      std::vector<at::Tensor> statistics;
      const auto part_rows = [&](size_t part, const Buffer& losses) {
        LossRows rows = arguments(parts[part], targets, losses, counted, terms, true);
        rows.first = part == 0 ? 0 : kFirst;
        rows.whole = kVocabulary;
        return rows;
      };
      for (size_t part : {0, 1}) {
        Buffer found({kRows, kRowStatistics}, at::kDouble);
        Buffer losses({kRows}, at::kDouble);
        LossRows rows = part_rows(part, losses);
        rows.found = reinterpret_cast<RowStatistics*>(found.data<double>());
        run_losses(rows);
        statistics.push_back(found.values().clone());
      }
      const Buffer known(combined(statistics));
      for (size_t part : {0, 1}) {
        Buffer losses({kRows}, at::kDouble);
        LossRows rows = part_rows(part, losses);
        rows.known = reinterpret_cast<const RowStatistics*>(known.data<double>());
        run_losses(rows);
        expect_near(losses.values(), expected.values(), "losses", 2e-6);
        expect_near(parts[part].values(), whole.values().narrow(1, rows.first, rows.vocabulary), "gradients",
                    type() == at::kFloat ? 1e-5 : 0);
      }
    }
  }
}

TEST_P(CudaLosses, LeaveLogitsAloneWhereNoGradientIsAskedFor) {
  const at::Tensor scores = random({3, 333}), target = at::tensor({5, -100, 332}, at::kLong);
  const Buffer targets(target), counted(at::full({1}, 2.0, at::kDouble));
  Buffer logits(scores), losses({3}, at::kDouble);
  run(logits, targets, losses, counted, {}, /*differentiates=*/false);
  EXPECT_TRUE(have_equal_bits(logits.values(), scores));
  expect_near(losses.values(), expected_losses(scores.to(at::kDouble), target, {}), "losses", 2e-6);
}

TEST_P(CudaLosses, OfLargeLogitsAreFinite) {
  const at::Tensor scores = at::tensor({3e4, -3e4, 2.9e4, 0.0, -INFINITY}).to(type()).unsqueeze(0);
  const Buffer targets(at::tensor({1}, at::kLong)), counted(at::full({1}, 1.0, at::kDouble));
  Buffer logits(scores), losses({1}, at::kDouble);
  run(logits, targets, losses, counted, {}, true);
  expect_near(losses.values(), expected_losses(scores.to(at::kDouble), targets.values(), {}), "losses", 2e-6);
  expect_near(logits.values(), at::tensor({1.0, -1.0, 0.0, 0.0, 0.0}, at::kDouble).unsqueeze(0), "gradients");
}

TEST_P(CudaLosses, OfLogitsThatAreNoNumbersAreNone) {
  for (double odd : {double{NAN}, double{INFINITY}}) {
    at::Tensor scores = random({1, 3000});
    scores[0][2500] = odd;
    const Buffer targets(at::tensor({1}, at::kLong)), counted(at::full({1}, 1.0, at::kDouble));
    Buffer logits(scores), losses({1}, at::kDouble);
    with_type([&]<typename T>(T) {
      cuda::losses<T>(EmulatedLaunch(), arguments(logits, targets, losses, counted, {}, true));
    });
    EXPECT_FALSE(std::isfinite(losses.values().item<double>()));
  }
}

TEST_P(CudaLosses, OfTargetsOutsideTheVocabularyAreNoNumbers) {
  const Buffer targets(at::tensor({-1, 40, 3}, at::kLong)), counted(at::full({1}, 3.0, at::kDouble));
  Buffer logits(random({3, 40})), losses({3}, at::kDouble);
  with_type([&]<typename T>(T) {
    cuda::losses<T>(EmulatedLaunch(), arguments(logits, targets, losses, counted, {}, true));
  });
  EXPECT_TRUE(std::isnan(losses.values()[0].item<double>()));
  EXPECT_TRUE(std::isnan(losses.values()[1].item<double>()));
  EXPECT_TRUE(std::isfinite(losses.values()[2].item<double>()));
  EXPECT_TRUE(logits.is_intact_around());
}

TEST(CudaMeanLoss, IsTheSumOverTheTargetsThatCount) {
  for (int64_t rows : {0, 1, 1023, 5000}) {
    at::manual_seed(2);
    at::Tensor target = at::randint(-2, 50, {rows}, at::kLong);
    target.masked_fill_(target < 0, kIgnored);
    const Buffer targets(target), losses(at::rand({rows}, at::kDouble));
    Buffer counted({1}, at::kDouble), mean({1}, at::kFloat);
    run_under_all_schedules({&counted, &mean}, [&](const EmulatedLaunch& launch) {
      count_targets(launch, targets.data<int64_t>(), rows, counted.data<double>());
      mean_loss(launch, losses.data<double>(), rows, counted.data<double>(), mean.data<float>());
    });
    const auto count = std::max(1.0, (target != kIgnored).sum().item<double>());
    EXPECT_EQ(counted.values().item<double>(), count) << rows;
    EXPECT_FLOAT_EQ(mean.values().item<float>(),
                    static_cast<float>(losses.values().sum().item<double>() / count));
  }
}

}  // namespace
}  // namespace fsdp::kernels::cuda
