#pragma once

// Nested models whose stages and sizes a test chooses, and what a test asks of their plans.

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "shard/engine/wrap_policy.h"
#include "support/tiny_models.h"

namespace fsdp::testing {

using Names = std::vector<std::string>;

/// A stage around others, with a weight of its own where `numel` is positive.
class GroupStage final : public nn::Stage {
 public:
  GroupStage(std::string type, std::vector<std::shared_ptr<nn::Stage>> children, int64_t numel = 0)
      : type_(std::move(type)), children_(std::move(children)) {
    if (numel > 0) weight_ = register_parameter("weight", at::ones({numel}));
    for (size_t i = 0; i < children_.size(); ++i) register_module(std::to_string(i), children_[i]);
  }
  std::string type_name() const override { return type_; }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext& context) override {
    at::Tensor x = input;
    for (const auto& child : children_) x = child->forward(x, context);
    return x;
  }

 private:
  std::string type_;
  std::vector<std::shared_ptr<nn::Stage>> children_;
  at::Tensor weight_;
};

inline std::shared_ptr<nn::Stage> matrix(int64_t size, const std::string& type = "linear") {
  return std::make_shared<MatrixStage>(size, size, type);
}

inline std::shared_ptr<nn::Stage> group(std::vector<std::shared_ptr<nn::Stage>> children,
                                        const std::string& type = "group", int64_t numel = 0) {
  return std::make_shared<GroupStage>(type, std::move(children), numel);
}

/// A stage that uses a weight that others may use too.
class SharingStage final : public nn::Stage {
 public:
  explicit SharingStage(at::Tensor weight) { register_parameter("weight", std::move(weight)); }
  std::string type_name() const override { return "sharing"; }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext&) override { return input; }
};

/// root: 0 {0.0 {0.0.0 shares}, 0.1 shares}, 1 {shares if all_three}
struct SharingModel {
  explicit SharingModel(bool all_three) {
    at::Tensor weight = at::ones({6});
    deep = std::make_shared<SharingStage>(weight);
    deep_group = group({deep}, "group", 2);
    flat = std::make_shared<SharingStage>(weight);
    both = group({deep_group, flat}, "group", 3);
    apart = all_three ? std::make_shared<SharingStage>(weight) : matrix(2);
    root = group({both, apart}, "group", 4);
  }
  std::shared_ptr<nn::Stage> deep, deep_group, flat, both, apart, root;
};

inline shard::ShardOptions with_threshold(int64_t min_num_params) {
  shard::ShardOptions options;
  options.min_num_params = min_num_params;
  return options;
}

inline Names names_of(const std::vector<shard::UnitPlan>& plans) {
  Names names;
  for (const shard::UnitPlan& plan : plans) names.push_back(plan.name);
  return names;
}

inline Names names_of(nn::Stage& root, const shard::ShardOptions& options) {
  return names_of(shard::plan_units(root, options));
}

inline Names parameters_of(const shard::UnitPlan& plan) {
  Names names;
  for (const shard::NamedParameter& parameter : plan.parameters) names.push_back(parameter.name);
  return names;
}

/// The message of the usage error that planning ends with.
inline std::string refusal(nn::Stage& root, const shard::ShardOptions& options) {
  try {
    shard::plan_units(root, options);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::testing
