// 200 requests of an evaluation against transformers in FSDP_TEST_PYTHON, tokenized as lm-evaluation-harness
// does.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

/// model/, requests.jsonl, and the answers of transformers on standard output, a line each.
constexpr const char* kAnswer = R"(
import json, random, torch, transformers
torch.manual_seed(1)
random.seed(1)
config = transformers.LlamaConfig(vocab_size=365, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    bos_token_id=360, eos_token_id=364)
model = transformers.LlamaForCausalLM(config).eval()
model.save_pretrained("model")
tokenizer = transformers.AutoTokenizer.from_pretrained("model")
words = "the cat sat on a mat and then 12 naïve dogs ran: it's \"far\" away.\n".split(" ")
def text(most):
    return " ".join(random.choice(words) for _ in range(random.randint(1, most)))
requests = []
for i in range(200):
    if i % 10 == 0:
        requests.append({"text": text(40), "id": i})
    else:
        context = "" if i % 17 == 0 else text(60 if i % 7 == 0 else 12) + (" " if i % 5 == 0 else "")
        requests.append({"context": context, "continuation": ("" if i % 5 == 0 else " ") + text(4), "id": i})
def ids_of(text, special=True):
    return tokenizer(text, add_special_tokens=special).input_ids
def pair(request):
    if "text" in request or not request["context"]:
        return [tokenizer.bos_token_id], ids_of(request.get("text") or request["continuation"], False)
    context, continuation = request["context"], request["continuation"]
    spaces = len(context) - len(context.rstrip())
    whole, begin = ids_of(context + continuation), ids_of(context[:len(context) - spaces])
    return begin, whole[len(begin):]
def piece(context, ids):
    row = (context + ids)[-(64 + 1):]
    scores = model(torch.tensor([row[:-1]])).logits[0].float().log_softmax(-1)[-len(ids):]
    chosen = torch.tensor(ids)
    return scores.gather(1, chosen[:, None]).sum().item(), bool((scores.argmax(-1) == chosen).all())
with open("requests.jsonl", "w") as file, torch.no_grad():
    for request in requests:
        # Every third continuation is what the model itself says.
        if "context" in request and request["id"] % 3 == 0:
            context, _ = pair(request)
            ids = context[-60:]
            for _ in range(3):
                ids = ids + [model(torch.tensor([ids])).logits[0, -1].argmax().item()]
            said = tokenizer.decode(ids[-3:])
            if said.strip() and "\ufffd" not in said:
                request["continuation"] = said
        context, ids = pair(request)
        total, greedy, done = 0.0, True, 0
        while done < len(ids):
            part = ids[done:done + 64]
            likelihood, is_most = piece(context + ids[:done], part)
            total, greedy, done = total + likelihood, greedy and is_most, done + len(part)
        file.write(json.dumps(request) + "\n")
        print(json.dumps({"id": request["id"], "log_likelihood": total, "tokens": len(ids), "is_greedy": greedy}))
)";

TEST(ScoredRequests, AreThoseOfTransformers) {
  const char* python = std::getenv("FSDP_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  if (testing::run({python, "-c", "import transformers"}).exit_code != 0) {
    GTEST_SKIP() << python << " lacks transformers";
  }
  const testing::TemporaryFolder folder;
  fs::create_directory(folder / "model");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(fs::path(testing::source_folder()) / "tests/data/chat/llama3" / name,
                  folder / "model" / name);
  }
  const auto run = [&](const Words& words) {
    return testing::run(words, {.env = {{"OMP_NUM_THREADS", "1"}, {"HF_HUB_OFFLINE", "1"}},
                                .working_folder = folder.path(),
                                .timeout_seconds = 120});
  };
  const auto theirs = run({python, "-c", kAnswer});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  const auto ours = run({program("fsdp-generate"), "model", "--score-requests", "requests.jsonl"});
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  std::istringstream their_lines(theirs.out), our_lines(ours.out);
  std::string expected_line, line;
  int count = 0, greedy = 0;
  while (std::getline(their_lines, expected_line)) {
    ASSERT_TRUE(std::getline(our_lines, line));
    const json expected = json::parse(expected_line), found = json::parse(line);
    const auto likelihood = expected["log_likelihood"].get<double>();
    EXPECT_EQ(found["id"], expected["id"]);
    EXPECT_EQ(found["tokens"], expected["tokens"]) << expected_line;
    EXPECT_EQ(found["is_greedy"], expected["is_greedy"]) << expected_line;
    EXPECT_NEAR(found["log_likelihood"].get<double>(), likelihood, 1e-4 * std::abs(likelihood))
        << expected_line;
    ++count;
    greedy += expected["is_greedy"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(count, 200);
  EXPECT_GT(greedy, 3) << "too few for a comparison";
}

}  // namespace
}  // namespace fsdp::e2e
