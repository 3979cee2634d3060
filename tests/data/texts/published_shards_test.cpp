// Archives and shards that the packages webdataset and mosaicml-streaming have written. FSDP_TEST_PYTHON
// names a Python that has them; each test is skipped where it lacks what the test needs.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/texts/rows.h"
#include "data/texts/text_input.h"
#include "data/token_fixtures.h"
#include "support/run_program.h"

namespace fsdp::data {
namespace {

/// Runs a script that writes to the folder, and returns what it prints, as JSON; null if the module is
/// missing.
nlohmann::json written(const testing::TemporaryFolder& folder, const std::string& module,
                       const std::string& script) {
  const char* python = std::getenv("FSDP_TEST_PYTHON");
  // Imports take many seconds on a busy machine.
  const std::string find =
      "import importlib.util, sys; sys.exit(importlib.util.find_spec('" + module + "') is None)";
  if (python == nullptr || testing::run({python, "-c", find}).exit_code != 0) return nullptr;
  const auto result = testing::run({python, "-c", script, folder.path().string()}, {.timeout_seconds = 300});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? nlohmann::json::parse(result.out) : nlohmann::json::object();
}

/// The values of a column of all rows of files.
nlohmann::json column_of_files(const std::vector<std::string>& files, const std::string& column) {
  nlohmann::json values = nlohmann::json::array();
  for (const std::string& path : files) {
    const auto rows = open_rows(path, {column});
    for (std::string row; rows->next(row) != 0; row.clear()) {
      const RowDocument document = document_of_row(row, rows->place(), column);
      values.push_back(document.is_tokens ? nlohmann::json(document.tokens) : nlohmann::json(document.text));
    }
  }
  return values;
}

TEST(PublishedShards, WebDatasetWritesWhatIsRead) {
  const testing::TemporaryFolder folder;
  const nlohmann::json expected = written(folder, "webdataset", R"(
import json, os, sys
import numpy as np
import webdataset as wds
os.chdir(sys.argv[1])
texts = [f"Text {i} \u00e9\n\"quoted\" " + "x" * (i * 700) for i in range(20)]
tokens = [np.arange(i, 3 * i + 5) for i in range(20)]
with wds.TarWriter("txt.tar") as out:
    for i, text in enumerate(texts):
        out.write({"__key__": f"sample{i:06d}", "txt": text, "cls": i})
with wds.TarWriter("json.tar.gz") as out:
    for i, text in enumerate(texts):
        out.write({"__key__": f"{'deep/' * 60}sample{i:06d}", "json": {"text": text, "url": "u"}})
with wds.ShardWriter("shard-%06d.tar", maxcount=7, verbose=0) as out:
    for i, ids in enumerate(tokens):
        out.write({"__key__": f"{i}", "npy": ids.astype(np.uint16), "big.npy": ids.astype(np.int64)})
print(json.dumps({"texts": texts, "tokens": [ids.tolist() for ids in tokens]}))
)");
  if (expected.is_null()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has webdataset";
  EXPECT_EQ(column_of_files({folder / "txt.tar"}, "text"), expected["texts"]);
  EXPECT_EQ(column_of_files({folder / "json.tar.gz"}, "text"), expected["texts"]);
  const auto shards = expand_texts({folder / "shard-*.tar"});
  EXPECT_EQ(shards.size(), 3u);
  EXPECT_EQ(column_of_files(shards, "tokens"), expected["tokens"]);
  EXPECT_EQ(column_of_files(shards, "big"), expected["tokens"]);
}

TEST(PublishedShards, MosaicMlStreamingWritesWhatIsRead) {
  const testing::TemporaryFolder folder;
  // The columns of tokens are those of llm-foundry's convert_dataset_hf.py: ndarray:int32 now, bytes of int64
  // before.
  const nlohmann::json expected = written(folder, "streaming", R"(
import json, os, sys
import numpy as np
from streaming import MDSWriter
os.chdir(sys.argv[1])
texts = [f"Text {i} \u00e9\n\"quoted\" " + "x" * (i * 700) for i in range(20)]
tokens = [np.arange(i, 3 * i + 5) for i in range(20)]
kinds = {"int32": ("ndarray:int32", None), "zstd": ("ndarray:uint16", "zstd"), "gz": ("ndarray:uint32", "gz"),
         "any": ("ndarray", None), "bytes": ("bytes", "zstd:7")}
for name, (encoding, compression) in kinds.items():
    with MDSWriter(out=name, columns={"tokens": encoding}, compression=compression, size_limit=800,
                   hashes=["sha1"]) as out:
        for ids in tokens:
            typed = ids.astype(encoding.split(":")[1] if ":" in encoding else np.int64)
            out.write({"tokens": typed.tobytes() if encoding == "bytes" else typed})
with MDSWriter(out="texts", columns={"text": "str", "a": "int", "n": "ndarray:float32:2"}, compression="zstd") as out:
    for i, text in enumerate(texts):
        out.write({"text": text, "a": i, "n": np.zeros(2, np.float32)})
print(json.dumps({"texts": texts, "tokens": [ids.tolist() for ids in tokens], "kinds": list(kinds)}))
)");
  if (expected.is_null()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has mosaicml-streaming";
  EXPECT_EQ(column_of_files(expand_texts({folder / "texts"}), "text"), expected["texts"]);
  for (const std::string kind : expected["kinds"]) {
    const auto shards = expand_texts({folder / kind});
    EXPECT_GT(shards.size(), 1u) << kind;
    EXPECT_EQ(column_of_files(shards, "tokens"), expected["tokens"]) << kind;
  }
}

}  // namespace
}  // namespace fsdp::data
