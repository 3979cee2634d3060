#include "base/util/gpu_data_sheets.h"

#include <cctype>
#include <regex>

namespace fsdp::util {
namespace {

struct Sheet {
  const char* names;  ///< regular expression for all plain() names
  GpuDataSheet values;
};

constexpr int64_t gib(int64_t count) { return count << 30; }

// Sources: NVIDIA's data sheets of V100 (2020), T4 (2019), A10, A30, A40 (2021), A100 (2022), L4, L40 and
// L40S (2023), H100 and H100 NVL (2024), H200 (2024), GH200 (2024), HGX B200 and GB200 NVL72 (2025), RTX
// A6000 (2021) and RTX 6000 Ada Generation (2023); and NVIDIA's white papers of the architectures GA102 (RTX
// 3090), Ada (RTX 4090) and Blackwell for GeForce (RTX 5090). Rates that a sheet gives only with sparsity,
// and link rates of both directions together, are halved. The link to the host is PCIe x16, or
// NVLink-C2C, which two GPUs of a GB200 share. A bare model name means the first of its variants.
constexpr Sheet kSheets[] = {
    // bf16, fp16, tf32, fp32, fp8 (TFLOP/s), memory, bytes per second of memory, link and host, NVLink
    {"v100(sxm2|sxm3|sxm|32gb)*", {"v100-sxm-32gb", 0, 125, 0, 15.7, 0, gib(32), 900e9, 150e9, 16e9, true}},
    {"v100(sxm2|sxm|16gb)*", {"v100-sxm-16gb", 0, 125, 0, 15.7, 0, gib(16), 900e9, 150e9, 16e9, true}},
    {"v100(pcie|32gb)*", {"v100-pcie-32gb", 0, 112, 0, 14, 0, gib(32), 900e9, 16e9, 16e9, false}},
    {"v100(pcie|16gb)*", {"v100-pcie-16gb", 0, 112, 0, 14, 0, gib(16), 900e9, 16e9, 16e9, false}},
    {"v100s(pcie|32gb)*", {"v100s-pcie", 0, 130, 0, 16.4, 0, gib(32), 1134e9, 16e9, 16e9, false}},
    {"t4(16gb)*", {"t4", 0, 65, 0, 8.1, 0, gib(16), 300e9, 16e9, 16e9, false}},
    {"a10(pcie|24gb)*", {"a10", 125, 125, 62.5, 31.2, 0, gib(24), 600e9, 32e9, 32e9, false}},
    {"a30(pcie|24gb)*", {"a30", 165, 165, 82, 10.3, 0, gib(24), 933e9, 100e9, 32e9, true}},
    {"a40(pcie|48gb)*", {"a40", 149.7, 149.7, 74.8, 37.4, 0, gib(48), 696e9, 56.25e9, 32e9, true}},
    {"a100(sxm4|sxm|80gb|hbm2e)*",
     {"a100-sxm-80gb", 312, 312, 156, 19.5, 0, gib(80), 2039e9, 300e9, 32e9, true}},
    {"a100(sxm4|sxm|40gb|hbm2)*",
     {"a100-sxm-40gb", 312, 312, 156, 19.5, 0, gib(40), 1555e9, 300e9, 32e9, true}},
    {"a100(pcie|80gb|hbm2e)*",
     {"a100-pcie-80gb", 312, 312, 156, 19.5, 0, gib(80), 1935e9, 300e9, 32e9, true}},
    {"a100(pcie|40gb|hbm2)*", {"a100-pcie-40gb", 312, 312, 156, 19.5, 0, gib(40), 1555e9, 300e9, 32e9, true}},
    {"l4(pcie|24gb)*", {"l4", 121, 121, 60, 30.3, 242.5, gib(24), 300e9, 32e9, 32e9, false}},
    {"l40(pcie|48gb)*", {"l40", 181.05, 181.05, 90.5, 90.5, 362, gib(48), 864e9, 32e9, 32e9, false}},
    {"l40s(pcie|48gb)*", {"l40s", 362.05, 362.05, 183, 91.6, 733, gib(48), 864e9, 32e9, 32e9, false}},
    {"h100(sxm5|sxm|80gb|hbm3)*",
     {"h100-sxm", 989.5, 989.5, 494.5, 67, 1979, gib(80), 3350e9, 450e9, 64e9, true}},
    {"h100(pcie|80gb|hbm2e)*",
     {"h100-pcie", 756.5, 756.5, 378, 51, 1513, gib(80), 2000e9, 300e9, 64e9, true}},
    {"h100(nvl|pcie|94gb|hbm3)*",
     {"h100-nvl", 835.5, 835.5, 417.5, 60, 1670.5, gib(94), 3900e9, 300e9, 64e9, true}},
    {"h200(sxm5|sxm|141gb|hbm3e)*",
     {"h200-sxm", 989.5, 989.5, 494.5, 67, 1979, gib(141), 4800e9, 450e9, 64e9, true}},
    {"h200(nvl|pcie|141gb|hbm3e)*",
     {"h200-nvl", 835.5, 835.5, 417.5, 60, 1670.5, gib(141), 4800e9, 450e9, 64e9, true}},
    // The 480 GB in the name are host memory.
    {"gh200(480gb|96gb|hbm3)*", {"gh200", 990, 990, 494, 67, 1979, gib(96), 4000e9, 450e9, 450e9, true}},
    {"gh200(480gb|144gb|144g|hbm3e)*",
     {"gh200-144gb", 990, 990, 494, 67, 1979, gib(144), 4900e9, 450e9, 450e9, true}},
    {"b200(sxm6|sxm|180gb|192gb|hbm3e)*",
     {"b200", 2250, 2250, 1125, 75, 4500, gib(180), 7700e9, 900e9, 64e9, true}},
    {"gb200(186gb|192gb|hbm3e)*",
     {"gb200", 2500, 2500, 1250, 80, 5000, gib(186), 8000e9, 900e9, 225e9, true}},
    {"(rtx)?3090(24gb)*", {"rtx-3090", 71, 71, 35.6, 35.6, 0, gib(24), 936e9, 56.25e9, 32e9, true}},
    {"(rtx)?4090(24gb)*", {"rtx-4090", 165.2, 165.2, 82.6, 82.6, 330.3, gib(24), 1008e9, 32e9, 32e9, false}},
    {"(rtx)?5090(32gb)*", {"rtx-5090", 209.5, 209.5, 104.8, 104.8, 419, gib(32), 1792e9, 64e9, 64e9, false}},
    {"(rtx)?a6000(48gb)*", {"rtx-a6000", 154.8, 154.8, 77.4, 38.7, 0, gib(48), 768e9, 56.25e9, 32e9, true}},
    {"(rtx)?6000ada(generation|48gb)*",
     {"rtx-6000-ada", 364.2, 364.2, 182.1, 91.1, 728.5, gib(48), 960e9, 32e9, 32e9, false}},
};

/// Returns `name` in lower case, without separators, maker and brand.
std::string plain(std::string_view name) {
  std::string text;
  for (const unsigned char c : name) {
    if (std::isalnum(c)) text += static_cast<char>(std::tolower(c));
  }
  for (const std::string_view brand : {"nvidia", "tesla", "geforce"}) {
    if (text.starts_with(brand)) text.erase(0, brand.size());
  }
  return text;
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
  for (const Sheet& sheet : kSheets) {
    if (std::regex_match(wanted, std::regex(sheet.names))) return &sheet.values;
  }
  return nullptr;
}

std::vector<std::string> gpu_data_sheet_names() {
  std::vector<std::string> names;
  for (const Sheet& sheet : kSheets) names.emplace_back(sheet.values.name);
  return names;
}

}  // namespace fsdp::util
