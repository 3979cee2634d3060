#include "base/util/gpu_data_sheets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::util {
namespace {

TEST(GpuDataSheets, AreFoundByTheNameThatCudaGivesADevice) {
  const std::vector<std::pair<std::string, std::string>> devices{
      {"Tesla V100-SXM2-16GB", "v100-sxm-16gb"},
      {"Tesla V100-SXM3-32GB", "v100-sxm-32gb"},
      {"Tesla V100-PCIE-16GB", "v100-pcie-16gb"},
      {"Tesla V100S-PCIE-32GB", "v100s-pcie"},
      {"Tesla T4", "t4"},
      {"NVIDIA A10", "a10"},
      {"A100-SXM4-40GB", "a100-sxm-40gb"},
      {"NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"},
      {"NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"},
      {"NVIDIA A100 80GB PCIe", "a100-pcie-80gb"},
      {"NVIDIA A40", "a40"},
      {"NVIDIA L4", "l4"},
      {"NVIDIA L40S", "l40s"},
      {"NVIDIA H100 80GB HBM3", "h100-sxm"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"NVIDIA H200", "h200-sxm"},
      {"NVIDIA H200 NVL", "h200-nvl"},
      {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA GH200 144G HBM3e", "gh200-144gb"},
      {"NVIDIA B200", "b200"},
      {"NVIDIA GeForce RTX 3090", "rtx-3090"},
      {"NVIDIA GeForce RTX 4090", "rtx-4090"},
      {"NVIDIA GeForce RTX 5090", "rtx-5090"},
      {"NVIDIA RTX A6000", "rtx-a6000"},
      {"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"}};
  for (const auto& [device, name] : devices) {
    const GpuDataSheet* sheet = gpu_data_sheet(device);
    ASSERT_NE(sheet, nullptr) << device;
    EXPECT_EQ(sheet->name, name) << device;
  }
}

TEST(GpuDataSheets, AreFoundByAShortNameAsItIsTyped) {
  const std::vector<std::pair<std::string, std::string>> typed{{"h100", "h100-sxm"},
                                                               {"H100-SXM", "h100-sxm"},
                                                               {"h100_pcie", "h100-pcie"},
                                                               {"a100", "a100-sxm-80gb"},
                                                               {"A100-40GB", "a100-sxm-40gb"},
                                                               {"a100 pcie", "a100-pcie-80gb"},
                                                               {"v100", "v100-sxm-32gb"},
                                                               {"rtx4090", "rtx-4090"},
                                                               {"4090", "rtx-4090"},
                                                               {"a6000", "rtx-a6000"},
                                                               {"gh200", "gh200"},
                                                               {"H200", "h200-sxm"},
                                                               {"rtx 6000 ada", "rtx-6000-ada"}};
  for (const auto& [word, name] : typed) {
    const GpuDataSheet* sheet = gpu_data_sheet(word);
    ASSERT_NE(sheet, nullptr) << word;
    EXPECT_EQ(sheet->name, name) << word;
  }
  for (const std::string& name : gpu_data_sheet_names()) {
    const GpuDataSheet* sheet = gpu_data_sheet(name);
    ASSERT_NE(sheet, nullptr) << name;
    EXPECT_EQ(sheet->name, name);
  }
}

TEST(GpuDataSheets, AGpuOfOtherRatesIsNotTakenForOneOfTheTable) {
  for (const char* name :
       {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", "NVIDIA A10G", "NVIDIA H20",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D",
        "Quadro RTX 6000", "AMD Instinct MI300X", "", "nvidia", "100"}) {
    EXPECT_EQ(gpu_data_sheet(name), nullptr) << name;
  }
}

TEST(GpuDataSheets, GiveDenseRatesByTheConfigurationsNamesOfTypes) {
  const GpuDataSheet& h100 = *gpu_data_sheet("h100");
  EXPECT_DOUBLE_EQ(h100.dense_tflops("bfloat16"), 989.5);
  EXPECT_DOUBLE_EQ(h100.dense_tflops("float16"), 989.5);
  EXPECT_DOUBLE_EQ(h100.dense_tflops("tf32"), 494.5);
  EXPECT_DOUBLE_EQ(h100.dense_tflops("float32"), 67);
  EXPECT_DOUBLE_EQ(h100.dense_tflops("float8"), 1979);
  EXPECT_DOUBLE_EQ(h100.dense_tflops("int4"), 0);
  EXPECT_EQ(h100.memory_bytes, int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(gpu_data_sheet("t4")->dense_tflops("bfloat16"), 0);
}

TEST(GpuDataSheets, HoldNoRateThatIsOutOfProportion) {
  for (const std::string& name : gpu_data_sheet_names()) {
    const GpuDataSheet& sheet = *gpu_data_sheet(name);
    EXPECT_GT(sheet.fp16_tflops, sheet.fp32_tflops) << name;
    EXPECT_TRUE(sheet.bf16_tflops == 0 || sheet.bf16_tflops == sheet.fp16_tflops) << name;
    // As the sheets round them, a product of half the bits takes half the time.
    EXPECT_TRUE(sheet.tf32_tflops == 0 || std::abs(sheet.fp16_tflops / sheet.tf32_tflops - 2) < 0.05) << name;
    EXPECT_TRUE(sheet.fp8_tflops == 0 || std::abs(sheet.fp8_tflops / sheet.fp16_tflops - 2) < 0.05) << name;
    EXPECT_GT(sheet.memory_bytes_per_second, 5 * sheet.link_bytes_per_second / 2) << name;
    EXPECT_TRUE(sheet.nvlink || sheet.link_bytes_per_second <= 64e9) << name;
  }
}

}  // namespace
}  // namespace fsdp::util
