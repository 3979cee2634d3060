#include "model/nn/planned_modules.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "base/util/text.h"
#include "model/nn/layers.h"
#include "model/nn/parallelize.h"

namespace fsdp::nn {
namespace {

/// Styles find their place in a module.
struct StyleTaker {
  PlannedModule& module;

  void operator()(const ColwiseParallel& style) const { set(module.colwise, style); }
  void operator()(const RowwiseParallel& style) const { set(module.rowwise, style); }
  void operator()(const SequenceParallel& style) const { set(module.sequence, style); }
  void operator()(const PrepareModuleInput& style) const { set(module.input, style); }
  void operator()(const PrepareModuleOutput& style) const { set(module.output, style); }

 private:
  template <typename Style>
  void set(std::optional<Style>& place, const Style& style) const {
    if (place)
      refuse_plan(module.path, "expected one style of a kind; found two entries; narrow one's pattern");
    place = style;
  }
};

void check_layer_of_libtorch(const PlannedModule& member) {
  if (member.as<Hookable>() == nullptr) {
    const std::string type = member.module->name();
    refuse_plan(member.path, "expected a layer whose calls can be hooked; found a plain ", type,
                "; declare it as fsdp::Hooked<", type, ">");
  }
  const auto* embedding = member.as<torch::nn::EmbeddingImpl>();
  if (embedding == nullptr) return;
  const auto& options = embedding->options;
  const char* unfit = options.padding_idx()          ? "padding_idx"
                      : options.max_norm()           ? "max_norm"
                      : options.scale_grad_by_freq() ? "scale_grad_by_freq"
                      : options.sparse()             ? "sparse"
                                                     : nullptr;
  if (unfit == nullptr) return;
  refuse_plan(member.path, "expected an embedding whose rows do not depend on the others; found one with ",
              unfit, ", which takes its ids for rows of the whole table; leave it whole or ", unfit, " out");
}

void check_kind(const PlannedModule& member) {
  const auto expect = [&](bool fits, const char* style, const char* kinds) {
    if (fits) return;
    refuse_plan(member.path, "expected ", style, " of ", kinds, "; found a module of type ",
                member.module->name(), "; name another module");
  };
  if (member.colwise.has_value() + member.rowwise.has_value() + member.sequence.has_value() > 1) {
    refuse_plan(member.path,
                "expected one of ColwiseParallel, RowwiseParallel and SequenceParallel; found two; ",
                "narrow one's pattern");
  }
  const bool linear = member.is_linear(), embedding = member.is_embedding();
  expect(!member.colwise || linear || member.is_head(), "ColwiseParallel", "a linear layer or the head");
  expect(!member.rowwise || linear || embedding, "RowwiseParallel", "a linear layer or an embedding");
  expect(!member.sequence || embedding || member.is_norm(), "SequenceParallel", "a norm or an embedding");
  expect(!(member.input || member.output) || member.as<Hookable>(),
         "PrepareModuleInput and PrepareModuleOutput", "a stage");
  if ((member.colwise || member.rowwise) && member.layer->is_of_libtorch) check_layer_of_libtorch(member);
}

void expect_layout(const PlannedModule& member, const char* what, const Layout& found, const Layout& expected,
                   const std::string& remedy) {
  if (found == expected) return;
  refuse_plan(member.path, "expected ", what, " ", parallel::to_string(expected), "; found ",
              parallel::to_string(found), "; ", remedy);
}

}  // namespace

bool PlannedModule::is_norm() const { return as<Norm>() || as<torch::nn::LayerNormImpl>(); }

PlannedModules::PlannedModules(const torch::nn::Module& model, const ParallelPlan& plan) {
  if (is_parallel(model)) {
    fail(ErrorKind::kUsage, "parallelize(): expected a whole model; found layers that ranks share ",
         "already; apply one plan once");
  }
  for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
    modules_.push_back({.path = item.key(), .module = item.value(), .layer = shared_layer(*item.value())});
  }
  take(plan);
  for (const PlannedModule& module : modules_) check_kind(module);
  check_layouts();
}

void PlannedModules::take(const ParallelPlan& plan) {
  std::vector<std::string> paths;
  for (const PlannedModule& member : modules_) paths.push_back(member.path);
  for (const ParallelEntry& entry : plan) {
    bool matches = false;
    for (PlannedModule& member : modules_) {
      if (!util::matches_any(member.path, {entry.modules})) continue;
      matches = true;
      std::visit(StyleTaker{member}, entry.style);
    }
    if (matches) continue;
    const std::string near = util::nearest(entry.modules, paths);
    refuse_plan(entry.modules, "expected a pattern of the model's modules; found none that matches it",
                near.empty() ? "" : concat("; did you mean \"", near, "\"?"));
  }
}

Layout PlannedModules::layout_between() const {
  for (const PlannedModule& member : modules_) {
    if (member.rowwise && member.is_embedding()) return member.rowwise->output;
  }
  return Replicate{};
}

const PlannedModule* PlannedModules::region_of(const PlannedModule& member) const {
  const PlannedModule* region = nullptr;
  for (const PlannedModule& each : modules_) {
    if (each.input && member.path.starts_with(each.path + ".")) region = &each;
  }
  return region;
}

bool PlannedModules::has_neighbour(const PlannedModule& member,
                                   bool (*is_wanted)(const PlannedModule&)) const {
  return std::any_of(modules_.begin(), modules_.end(), [&](const PlannedModule& each) {
    return each.parent() == member.parent() && is_wanted(each);
  });
}

void PlannedModules::check_layouts() const {
  const Layout between = layout_between();
  const std::string name = parallel::to_string(between);
  if (const auto* cut = std::get_if<Shard>(&between); cut != nullptr && cut->dim != 1) {
    fail(ErrorKind::kUsage, "parallel plan: expected activations that are cut on dimension 1, the ",
         "sequence; found an embedding that leaves ", name, "; use Shard(1)");
  }
  for (const PlannedModule& member : modules_) {
    if (member.is_linear()) check_linear(member, between);
    if (member.input) {
      expect_layout(member, "the input", member.input->input, between, "the layer before it leaves " + name);
    }
    if (member.output) {
      expect_layout(member, "the output outside", member.output->desired, between,
                    "the layer after it takes " + name);
    }
    const bool is_on_the_cut = member.is_norm() || (member.is_embedding() && !member.rowwise);
    if (is_on_the_cut && region_of(member) == nullptr) {
      const Layout own = member.sequence ? Layout(Shard{member.sequence->dim}) : Layout(Replicate{});
      expect_layout(
          member, "a layer that works on", own, between,
          std::holds_alternative<Shard>(between) ? "add SequenceParallel" : "leave SequenceParallel out");
    }
    if (member.is_embedding() && member.rowwise) {
      expect_layout(member, "the output", member.rowwise->output, between,
                    "all embeddings must leave the same");
    }
    if (member.is_head()) {
      const ColwiseParallel style = member.colwise.value_or(ColwiseParallel{});
      expect_layout(member, "the input", style.input, between, "the layer before it leaves " + name);
      expect_layout(member, "logits that lie on the ranks as", style.output, Shard{-1},
                    "the loss is computed from parts, and scores are gathered where no targets are given");
    }
  }
}

void PlannedModules::check_linear(const PlannedModule& member, const Layout& between) const {
  const PlannedModule* region = region_of(member);
  const Layout cut = Shard{-1};
  if (!member.has_style()) {
    const std::string remedy = "give it a style, or keep the sequence whole";
    if (region == nullptr)
      return expect_layout(member, "a layer that works on", Replicate{}, between, remedy);
    refuse_plan(member.path, "expected a style for each linear layer of ", region->path,
                ", which several ranks share; found none; add ColwiseParallel or RowwiseParallel");
  }
  if (member.colwise) {
    const Layout& comes = region != nullptr ? region->input->desired : between;
    expect_layout(member, "the input", member.colwise->input, comes,
                  region != nullptr ? region->path + " gives it " + parallel::to_string(comes)
                                    : "the layer before it leaves " + parallel::to_string(comes));
    if (region != nullptr) {
      expect_layout(*region, "for column-parallel layers a desired input of", comes, Replicate{},
                    "each rank needs all input features of all tokens");
    }
    const bool is_taken = has_neighbour(member, [](const PlannedModule& each) {
      return each.rowwise && each.is_linear() && each.rowwise->input == Layout(Shard{-1});
    });
    if (member.colwise->output == cut && !is_taken) {
      refuse_plan(
          member.path,
          "expected a RowwiseParallel layer of Shard(-1) after one that leaves Shard(-1); found none in ",
          member.parent(), "; add one or set its output to Replicate");
    }
  }
  if (member.rowwise) {
    const bool takes_its_part = region == nullptr && member.rowwise->input == between;
    if (!takes_its_part) {
      expect_layout(member, "the input", member.rowwise->input, cut,
                    "a rank has the features of its columns only");
    }
    const bool is_fed = has_neighbour(member, [](const PlannedModule& each) {
      return each.colwise && each.is_linear() && each.colwise->output == Layout(Shard{-1});
    });
    if (!is_fed && !takes_its_part) {
      refuse_plan(member.path,
                  "expected a ColwiseParallel layer that leaves Shard(-1) before it; found none in ",
                  member.parent(), "; add one");
    }
    const Layout& wanted = region != nullptr && region->output ? region->output->output : between;
    expect_layout(member, "the output", member.rowwise->output, wanted,
                  "the next layer takes " + parallel::to_string(wanted));
  }
}

}  // namespace fsdp::nn
