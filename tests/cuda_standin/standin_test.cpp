// What the stand-in itself finds and computes. A ctest entry for streams that run at once, one for late
// ones; both with the search for races.

#include "standin.h"

#include <c10/util/BFloat16.h>
#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "numbers_accesses.h"
#include "products.h"

namespace standin {
namespace {

bool is_late() { return std::getenv("STANDIN_LATE") != nullptr; }

class Standin : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(&pinned_, kBytes, 0), cudaSuccess);
    for (cudaStream_t* stream : {&first_, &second_}) {
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    }
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    before_ = standin_violations();
  }
  void TearDown() override {
    cudaDeviceSynchronize();
    cudaFree(memory_);
    cudaFreeHost(pinned_);
    cudaStreamDestroy(first_);
    cudaStreamDestroy(second_);
    cudaEventDestroy(event_);
  }
  long violations() const { return standin_violations() - before_; }

  static constexpr size_t kBytes = 1 << 20;
  void* memory_ = nullptr;
  void* pinned_ = nullptr;
  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;

 private:
  long before_ = 0;
};

TEST_F(Standin, MovesWhatIsCopied) {
  std::vector<char> there(kBytes, 7), back(kBytes);
  EXPECT_EQ(cudaMemcpy(memory_, there.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(back.data(), memory_, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(there, back);
  EXPECT_EQ(violations(), 0);
}

TEST_F(Standin, EndsAProgramThatTouchesADevicesMemory) {
  EXPECT_DEATH(*static_cast<volatile char*>(memory_) = 1, "");
}

TEST_F(Standin, ReportsMemoryThatIsNotAllocated) {
  EXPECT_NE(cudaMemset(static_cast<char*>(memory_) + (8 << 20), 0, 16), cudaSuccess);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, ReportsTwoStreamsThatWriteTheSameMemory) {
  cudaMemsetAsync(memory_, 1, kBytes, first_);
  cudaMemsetAsync(memory_, 2, kBytes, second_);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, AcceptsTwoStreamsThatAnEventOrders) {
  cudaMemsetAsync(memory_, 1, kBytes, first_);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  cudaMemcpyAsync(pinned_, memory_, kBytes, cudaMemcpyDeviceToHost, second_);
  EXPECT_EQ(violations(), 0);
}

TEST_F(Standin, AcceptsTwoStreamsBetweenWhichTheHostWaits) {
  cudaMemsetAsync(memory_, 1, kBytes / 2, first_);
  cudaStreamSynchronize(first_);
  cudaMemsetAsync(memory_, 2, kBytes / 2, second_);
  EXPECT_EQ(violations(), 0);
}

TEST_F(Standin, ReportsAProductThatReadsWhatACopyWrites) {
  cublasHandle_t handle = nullptr;
  cublasCreate_v2(&handle);
  cublasSetStream_v2(handle, second_);
  auto* numbers = static_cast<float*>(memory_);
  const float one = 1;
  cudaMemcpyAsync(memory_, pinned_, kBytes / 4, cudaMemcpyHostToDevice, first_);
  cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, numbers, 8, numbers + 64, 8, &one,
                 numbers + (1 << 17), 8);
  EXPECT_GT(violations(), 0);
  cublasDestroy_v2(handle);
}

/// Reads every second of 8 numbers and adds 1 to the last 4 of 16, as an emulated kernel on a stream.
class Addition {
 public:
  explicit Addition(float* numbers) : numbers_(numbers) {}
  void run_on(cudaStream_t stream) {
    cudaLaunchHostFunc(
        stream, [](void* self) { static_cast<Addition*>(self)->run(); }, this);
  }
  void run() {
    const AccessRecord record;
    for (int i = 0; i < 8; i += 2) sum += numbers_[i];
    for (int i = 15; i >= 12; --i) numbers_[i] += 1;
    ranges = record.ranges();
    standin_accessed("an addition", ranges.data(), static_cast<int>(ranges.size()));
  }

  std::vector<Range> ranges;
  float sum = 0;

 private:
  float* numbers_;
};

TEST_F(Standin, KnowsWhatEmulatedKernelsReadAndWrite) {
  auto* const numbers = static_cast<float*>(memory_);
  Addition addition(static_cast<float*>(standin_view(memory_, 64, "a test")));
  addition.run();
  EXPECT_EQ(addition.sum, 0);
  ASSERT_EQ(addition.ranges.size(), 6U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(addition.ranges[i].data, numbers + 2 * i);
    EXPECT_EQ(addition.ranges[i].bytes, sizeof(float));
  }
  for (size_t i = 4; i < 6; ++i) {
    EXPECT_EQ(addition.ranges[i].data, numbers + 12);
    EXPECT_EQ(addition.ranges[i].bytes, 4 * sizeof(float));
    EXPECT_EQ(addition.ranges[i].writes, i == 5);
  }
}

TEST_F(Standin, ReportsAnEmulatedKernelThatReadsWhatAnotherStreamWrites) {
  if (is_late()) GTEST_SKIP() << "accesses would be noted in the order of the threads";
  Addition addition(static_cast<float*>(standin_view(memory_, 64, "a test")));
  const auto written_by_copy = [&](size_t first) {
    cudaMemcpyAsync(static_cast<float*>(memory_) + first, pinned_, sizeof(float), cudaMemcpyHostToDevice,
                    first_);
  };
  written_by_copy(3);  // between what is read
  addition.run_on(second_);
  EXPECT_EQ(violations(), 0);
  written_by_copy(4);
  EXPECT_EQ(violations(), 1);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  addition.run_on(second_);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, ReportsALaunchThatCudaWouldRefuse) {
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(2048), nullptr, 0, first_),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, ReportsAContextOnASecondDevice) {
  std::thread([] {
    cudaSetDevice(1);
    cudaSetDevice(0);
  }).join();
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, ReportsAllocationDuringACapture) {
  cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, ReportsACaptureWhoseStreamsDoNotJoinAgain) {
  cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  cudaMemsetAsync(memory_, 1, kBytes, second_);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(violations(), 1);
}

TEST_F(Standin, LaunchesWhatAGraphRecorded) {
  cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal);
  cudaMemsetAsync(memory_, 5, 1, first_);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(executable, first_), cudaSuccess);
  char value = 0;
  cudaStreamSynchronize(first_);
  cudaMemcpy(&value, memory_, 1, cudaMemcpyDeviceToHost);
  EXPECT_EQ(value, 5);
  EXPECT_EQ(violations(), 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(Product, IsThatOfFortransMatrices) {
  std::vector<float> a{1, 2, 3, 4, 5, 6};                  // [2, 3], or [3, 2] where it is transposed
  std::vector<c10::BFloat16> b{1, 0, 2, -7, 3, 1, 1, -7};  // [3, 2], with a gap behind each column
  std::vector<float> c{1, 10, 100, 1000}, d(4), bias{0.5F, 0.25F};
  Product product{.m = 2, .n = 2, .k = 3, .alpha = 2, .beta = 3};
  product.a = {a.data(), CUDA_R_32F, 2};
  product.b = {b.data(), CUDA_R_16BF, 4};
  product.c = {c.data(), CUDA_R_32F, 2};
  product.d = {d.data(), CUDA_R_32F, 2};
  ASSERT_TRUE(product.compute());
  EXPECT_EQ(d, (std::vector<float>{2 * 11 + 3, 2 * 14 + 30, 2 * 11 + 300, 2 * 16 + 3000}));
  product.a.is_transposed = true;
  product.a.leading = 3;
  product.beta = 0;
  product.bias = {bias.data(), CUDA_R_32F, 2};
  const float half = 0.5F;
  product.scale_a = &half;
  ASSERT_TRUE(product.compute());
  EXPECT_EQ(d, (std::vector<float>{7.5F, 16.25F, 8.5F, 23.25F}));
}

TEST(Product, IsComputedForEachOfABatch) {
  std::vector<float> a{2, 3}, b{5, 7}, d(2);
  Product product{.m = 1, .n = 1, .k = 1, .batch = 2};
  product.a = {a.data(), CUDA_R_32F, 1, 1};
  product.b = {b.data(), CUDA_R_32F, 1, 0};  // the same in all products
  product.d = {d.data(), CUDA_R_32F, 1, 1};
  ASSERT_TRUE(product.compute());
  EXPECT_EQ(d, (std::vector<float>{10, 15}));
}

/// Holds a stream up until it is destroyed.
class Delay {
 public:
  explicit Delay(cudaStream_t stream) {
    cudaLaunchHostFunc(
        stream,
        [](void* over) {
          while (!static_cast<std::atomic<bool>*>(over)->load()) std::this_thread::yield();
        },
        &over_);
  }
  void end() { over_ = true; }

 private:
  std::atomic<bool> over_{false};
};

TEST_F(Standin, GivesNoNumbersBeforeALateCopyIsDone) {
  if (!is_late()) GTEST_SKIP() << "streams run at once";
  auto* number = static_cast<float*>(pinned_);
  *number = 1;
  Delay delay(first_);
  cudaMemcpyAsync(number, memory_, sizeof(float), cudaMemcpyDeviceToHost, first_);
  EXPECT_TRUE(std::isnan(*number));
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
  delay.end();
  cudaStreamSynchronize(first_);
  EXPECT_FALSE(std::isnan(*number));
}

TEST_F(Standin, ReportsASourceThatChangesBeforeItsLateCopy) {
  if (!is_late()) GTEST_SKIP() << "streams run at once";
  std::memset(pinned_, 1, 16);
  Delay delay(first_);
  cudaMemcpyAsync(memory_, pinned_, 16, cudaMemcpyHostToDevice, first_);
  std::memset(pinned_, 2, 16);
  delay.end();
  cudaStreamSynchronize(first_);
  EXPECT_EQ(violations(), 1);
}

}  // namespace
}  // namespace standin
