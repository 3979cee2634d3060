#pragma once

// Trials of products in the first step of a run (training.product_trials, model/kernels/product_choices.h).

#include <memory>
#include <string>

#include "model/kernels/product_choices.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// The content of products.json.
std::string text_of_choices(const kernels::ChosenProducts& choices, const std::string& library);
/// Throws an exception with the reason if the text is none of text_of_choices() for this library.
kernels::ChosenProducts choices_in(const std::string& text, const std::string& library);

/// Lets the first step try the products for which the file in the output folder has no choice. After it, all
/// ranks use the choices of the first, which keeps them in the file. Returns null if nothing is to be tried
/// or used.
std::shared_ptr<StepObserver> make_product_trials(RunState& run);

}  // namespace fsdp::train
