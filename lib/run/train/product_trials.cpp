#include "run/train/product_trials.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/log.h"

namespace fsdp::train {
namespace {

constexpr int64_t kMostValues = 100'000;

class ProductTrials final : public StepObserver {
 public:
  explicit ProductTrials(RunState& run)
      : run_(run),
        device_(run.communicator->device()),
        library_(kernels::product_library(device_)),
        file_(run.output_folder() / "products.json") {}
  ProductTrials(const ProductTrials&) = delete;
  ProductTrials& operator=(const ProductTrials&) = delete;
  ~ProductTrials() override { kernels::set_product_choices(device_, nullptr); }

  void begin(ObservedStep&) override {
    const kernels::ChosenProducts known = of_first_rank(run_.is_first_rank() ? in_file() : kNone);
    choices_ = std::make_shared<kernels::ProductChoices>(
        kernels::ProductChoices::Options{.known = known, .tries = !run_.config.training.deterministic});
    kernels::set_product_choices(device_, choices_);
  }

  void end_step(ObservedStep&) override {
    if (choices_->is_settled()) return;
    choices_->settle(of_first_rank(choices_->all()));
    if (run_.is_first_rank()) keep(choices_->all());
  }

 private:
  inline static const kernels::ChosenProducts kNone;

  /// Collective: the ranks of another machine may not see the file.
  kernels::ChosenProducts of_first_rank(const kernels::ChosenProducts& choices) {
    const std::string text = run_.is_first_rank() ? text_of_choices(choices, library_) : std::string();
    const std::string first = comm::first_text(*run_.communicator, text, {.unit = "algorithms of products"});
    // On another GPU, or with another version of the library, the words would mean something else.
    return library_in(first) == library_ ? choices_in(first, library_) : kNone;
  }
  static std::string library_in(const std::string& text) {
    return nlohmann::json::parse(text).at("library").get<std::string>();
  }

  kernels::ChosenProducts in_file() const {
    try {
      if (util::is_there(file_)) return choices_in(util::read_file(file_), library_);
    } catch (const std::exception& error) {
      util::log_warning(concat(file_.string(), " with algorithms of products is not used: ", error.what()));
    }
    return {};
  }

  void keep(const kernels::ChosenProducts& choices) const {
    const auto chosen =
        std::ranges::count_if(choices, [](const auto& each) { return each.second.has_value(); });
    util::log_info(concat("products: algorithms of cublasLt compute ", chosen, " of ", choices.size(),
                          " kinds, and the first rank keeps them in ", file_.string()));
    try {
      util::write_file_atomically(file_, text_of_choices(choices, library_));
    } catch (const Error& error) {
      util::log_warning(concat("algorithms of products are not kept: ", error.what()));
    }
  }

  RunState& run_;
  at::Device device_;
  std::string library_;
  std::filesystem::path file_;
  std::shared_ptr<kernels::ProductChoices> choices_;
};

}  // namespace

std::string text_of_choices(const kernels::ChosenProducts& choices, const std::string& library) {
  nlohmann::json products = nlohmann::json::object();
  for (const auto& [shape, choice] : choices) products[shape] = choice ? nlohmann::json(*choice) : nullptr;
  return nlohmann::json{{"library", library}, {"products", std::move(products)}}.dump(1) + "\n";
}

kernels::ChosenProducts choices_in(const std::string& text, const std::string& library) {
  const nlohmann::json found = util::parse_json(text, {.deepest_level = 4, .most_values = kMostValues});
  const std::string& of = found.at("library").get_ref<const std::string&>();
  if (of != library) fail(ErrorKind::kData, "it is for ", of, ", not for ", library);
  kernels::ChosenProducts choices;
  for (const auto& [shape, words] : found.at("products").items()) {
    kernels::ProductChoice& choice = choices[shape];
    if (words.is_null()) continue;
    const bool fits = words.is_array() && words.size() == choice.emplace().size() &&
                      std::ranges::all_of(words, [](const auto& word) { return word.is_number_unsigned(); });
    if (!fits) fail(ErrorKind::kData, "expected eight numbers or null for the shape ", shape);
    words.get_to(*choice);
  }
  return choices;
}

std::shared_ptr<StepObserver> make_product_trials(RunState& run) {
  const bool is_on = run.config.training.product_trials && run.communicator->device().is_cuda();
  return is_on ? std::make_shared<ProductTrials>(run) : nullptr;
}

}  // namespace fsdp::train
