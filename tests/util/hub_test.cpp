#include "util/hub.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

TEST(HubRemedy, IsForNamesThatCanBeOnTheHub) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-0.5B"}) {
    EXPECT_NE(hub_remedy(name).find(std::string("huggingface-cli download ") + name + " "), std::string::npos)
        << name;
  }
  for (const char* name : {"", "/models/gpt2", "./gpt2", "../a/b", "a/b/c", "models/gpt2.safetensors",
                           "tokenizer.json", "a b/c", "owner/", "/name", "~/models"}) {
    EXPECT_EQ(hub_remedy(name), "") << name;
  }
}

}  // namespace
}  // namespace fsdp::util
