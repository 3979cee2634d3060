#include "util/gpu_data_sheets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

namespace fsdp::util {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// How the names of one GPU may read: one of the models, then any of the words in any order.
struct Sheet {
  std::array<std::string_view, 2> models;
  std::array<std::string_view, 8> words;
  GpuDataSheet values;
};

// Sources: NVIDIA's data sheets of V100 (2020), T4 (2019), A10, A30, A40 (2021), A100 (2022), L4, L40 and
// L40S (2023), H100 and H100 NVL (2024), H200 (2024), GH200 (2024), HGX B200 and GB200 NVL72 (2025), RTX
// A6000 (2021) and RTX 6000 Ada Generation (2023); and NVIDIA's white papers of the architectures GA102 (RTX
// 3090), Ada (RTX 4090) and Blackwell for GeForce (RTX 5090). Where a sheet gives rates with sparsity only,
// half of them stands here, and where it counts both directions of a link, half of that. Of the GPUs with one
// model name, the first is the one that a bare model means.
constexpr int64_t gib(int64_t count) { return count * kGiB; }
constexpr std::array kSheets{
    // name, bf16, fp16, tf32, fp32, fp8 (TFLOP/s), memory, memory's and link's bytes per second, NVLink
    Sheet{{"v100"},
          {"sxm2", "sxm3", "sxm", "32gb"},
          {"v100-sxm-32gb", 0, 125, 0, 15.7, 0, gib(32), 900e9, 150e9, true}},
    Sheet{{"v100"},
          {"sxm2", "sxm", "16gb"},
          {"v100-sxm-16gb", 0, 125, 0, 15.7, 0, gib(16), 900e9, 150e9, true}},
    Sheet{{"v100"}, {"pcie", "32gb"}, {"v100-pcie-32gb", 0, 112, 0, 14, 0, gib(32), 900e9, 16e9, false}},
    Sheet{{"v100"}, {"pcie", "16gb"}, {"v100-pcie-16gb", 0, 112, 0, 14, 0, gib(16), 900e9, 16e9, false}},
    Sheet{{"v100s"}, {"pcie", "32gb"}, {"v100s-pcie", 0, 130, 0, 16.4, 0, gib(32), 1134e9, 16e9, false}},
    Sheet{{"t4"}, {"16gb"}, {"t4", 0, 65, 0, 8.1, 0, gib(16), 300e9, 16e9, false}},
    Sheet{{"a10"}, {"pcie", "24gb"}, {"a10", 125, 125, 62.5, 31.2, 0, gib(24), 600e9, 32e9, false}},
    Sheet{{"a30"}, {"pcie", "24gb"}, {"a30", 165, 165, 82, 10.3, 0, gib(24), 933e9, 100e9, true}},
    Sheet{{"a40"}, {"pcie", "48gb"}, {"a40", 149.7, 149.7, 74.8, 37.4, 0, gib(48), 696e9, 56.25e9, true}},
    Sheet{{"a100"},
          {"sxm4", "sxm", "80gb", "hbm2e"},
          {"a100-sxm-80gb", 312, 312, 156, 19.5, 0, gib(80), 2039e9, 300e9, true}},
    Sheet{{"a100"},
          {"sxm4", "sxm", "40gb", "hbm2"},
          {"a100-sxm-40gb", 312, 312, 156, 19.5, 0, gib(40), 1555e9, 300e9, true}},
    Sheet{{"a100"},
          {"pcie", "80gb", "hbm2e"},
          {"a100-pcie-80gb", 312, 312, 156, 19.5, 0, gib(80), 1935e9, 300e9, true}},
    Sheet{{"a100"},
          {"pcie", "40gb", "hbm2"},
          {"a100-pcie-40gb", 312, 312, 156, 19.5, 0, gib(40), 1555e9, 300e9, true}},
    Sheet{{"l4"}, {"pcie", "24gb"}, {"l4", 121, 121, 60, 30.3, 242.5, gib(24), 300e9, 32e9, false}},
    Sheet{{"l40"}, {"pcie", "48gb"}, {"l40", 181.05, 181.05, 90.5, 90.5, 362, gib(48), 864e9, 32e9, false}},
    Sheet{{"l40s"}, {"pcie", "48gb"}, {"l40s", 362.05, 362.05, 183, 91.6, 733, gib(48), 864e9, 32e9, false}},
    Sheet{{"h100"},
          {"sxm5", "sxm", "80gb", "hbm3"},
          {"h100-sxm", 989.5, 989.5, 494.5, 67, 1979, gib(80), 3350e9, 450e9, true}},
    Sheet{{"h100"},
          {"pcie", "80gb", "hbm2e"},
          {"h100-pcie", 756.5, 756.5, 378, 51, 1513, gib(80), 2000e9, 300e9, true}},
    Sheet{{"h100"},
          {"nvl", "pcie", "94gb", "hbm3"},
          {"h100-nvl", 835.5, 835.5, 417.5, 60, 1670.5, gib(94), 3900e9, 300e9, true}},
    Sheet{{"h200"},
          {"sxm5", "sxm", "141gb", "hbm3e"},
          {"h200-sxm", 989.5, 989.5, 494.5, 67, 1979, gib(141), 4800e9, 450e9, true}},
    Sheet{{"h200"},
          {"nvl", "pcie", "141gb", "hbm3e"},
          {"h200-nvl", 835.5, 835.5, 417.5, 60, 1670.5, gib(141), 4800e9, 450e9, true}},
    Sheet{{"gh200"},
          {"480gb", "96gb", "hbm3"},  // 480 GB are the host's
          {"gh200", 990, 990, 494, 67, 1979, gib(96), 4000e9, 450e9, true}},
    Sheet{{"gh200"},
          {"480gb", "144gb", "144g", "hbm3e"},
          {"gh200-144gb", 990, 990, 494, 67, 1979, gib(144), 4900e9, 450e9, true}},
    Sheet{{"b200"},
          {"sxm6", "sxm", "180gb", "192gb", "hbm3e"},
          {"b200", 2250, 2250, 1125, 75, 4500, gib(180), 7700e9, 900e9, true}},
    Sheet{{"gb200"},
          {"186gb", "192gb", "hbm3e"},
          {"gb200", 2500, 2500, 1250, 80, 5000, gib(186), 8000e9, 900e9, true}},
    Sheet{{"rtx3090", "3090"}, {"24gb"}, {"rtx-3090", 71, 71, 35.6, 35.6, 0, gib(24), 936e9, 56.25e9, true}},
    Sheet{{"rtx4090", "4090"},
          {"24gb"},
          {"rtx-4090", 165.2, 165.2, 82.6, 82.6, 330.3, gib(24), 1008e9, 32e9, false}},
    Sheet{{"rtx5090", "5090"},
          {"32gb"},
          {"rtx-5090", 209.5, 209.5, 104.8, 104.8, 419, gib(32), 1792e9, 64e9, false}},
    Sheet{{"rtxa6000", "a6000"},
          {"48gb"},
          {"rtx-a6000", 154.8, 154.8, 77.4, 38.7, 0, gib(48), 768e9, 56.25e9, true}},
    Sheet{{"rtx6000ada", "6000ada"},
          {"generation", "48gb"},
          {"rtx-6000-ada", 364.2, 364.2, 182.1, 91.1, 728.5, gib(48), 960e9, 32e9, false}},
};

/// In small letters, without separators and without the words that name the maker and the brand.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (const std::string_view brand : {"nvidia", "tesla", "geforce"}) {
    if (text.starts_with(brand)) text.erase(0, brand.size());
  }
  return text;
}

/// Whether `rest` is a row of those words. All ways to part it are tried: in "sxm32gb" stands "sxm", not
/// "sxm3".
bool consists_of(std::string_view rest, std::span<const std::string_view> words) {
  return rest.empty() || std::any_of(words.begin(), words.end(), [&](std::string_view word) {
           return !word.empty() && rest.starts_with(word) && consists_of(rest.substr(word.size()), words);
         });
}

bool fits(const Sheet& sheet, std::string_view name) {
  return std::any_of(sheet.models.begin(), sheet.models.end(), [&](std::string_view model) {
    return !model.empty() && name.starts_with(model) && consists_of(name.substr(model.size()), sheet.words);
  });
}

}  // namespace

double GpuDataSheet::dense_tflops(std::string_view dtype) const {
  if (dtype == "bfloat16") return bf16_tflops;
  if (dtype == "float16") return fp16_tflops;
  if (dtype == "float32") return fp32_tflops;
  if (dtype == "tf32") return tf32_tflops;
  if (dtype == "float8") return fp8_tflops;
  return 0;
}

const GpuDataSheet* gpu_data_sheet(std::string_view name) {
  const std::string wanted = plain(name);
  const auto sheet =
      std::find_if(kSheets.begin(), kSheets.end(), [&](const Sheet& each) { return fits(each, wanted); });
  return sheet == kSheets.end() ? nullptr : &sheet->values;
}

std::vector<std::string> gpu_data_sheet_names() {
  std::vector<std::string> names;
  for (const Sheet& sheet : kSheets) names.emplace_back(sheet.values.name);
  return names;
}

}  // namespace fsdp::util
