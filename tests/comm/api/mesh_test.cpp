#include "comm/api/mesh.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

using enum MeshAxis;

std::string refusal(const MeshOptions& options, int world_size) {
  try {
    resolve_mesh(options, world_size);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(MeshShape, TheRestTakesWhatTheOtherAxesLeave) {
  EXPECT_EQ(resolve_mesh({}, 7), (MeshShape{1, 7, 1, 1}));
  EXPECT_EQ(resolve_mesh({.dcn = 2}, 8), (MeshShape{2, 4, 1, 1}));
  EXPECT_EQ(resolve_mesh({.dcn = -1, .data = 4}, 8), (MeshShape{2, 4, 1, 1}));
  EXPECT_EQ(resolve_mesh({.dcn = 2, .data = 3, .model = -1}, 6), (MeshShape{2, 3, 1, 1}));
  EXPECT_EQ(resolve_mesh({.context = 4}, 8), (MeshShape{1, 2, 4, 1}));
  EXPECT_EQ(resolve_mesh({.dcn = 2, .data = 3, .model = 4}, 24), (MeshShape{2, 3, 1, 4}));
}

TEST(MeshShape, SpellsOutWhatDoesNotFit) {
  EXPECT_EQ(refusal({.dcn = 2, .data = 3, .model = 1}, 4),
            "[mesh]: the number of processes must be the product of the axes, mesh.dcn 2 x "
            "mesh.data 3 x mesh.context 1 x mesh.model "
            "1 = 6, but the run has 4 processes; set one axis to -1 (the rest) or start 6 processes");
  EXPECT_EQ(refusal({.dcn = 1, .data = 1, .model = 1}, 2),
            "[mesh]: the number of processes must be the product of the axes, mesh.dcn 1 x "
            "mesh.data 1 x mesh.context 1 x mesh.model "
            "1 = 1, but the run has 2 processes; set one axis to -1 (the rest) or start 1 process");
  EXPECT_EQ(
      refusal({.dcn = 2, .data = -1, .model = 3}, 8),
      "[mesh]: the number of processes must be a multiple of 6 for mesh.dcn 2 x mesh.data "
      "the rest (-1) x mesh.context 1 x mesh.model 3, but the run has 8 processes: 8 = 1 x 6 + 2; start a "
      "multiple of 6 processes or change an axis");
  EXPECT_EQ(
      refusal({.dcn = 4, .data = -1}, 1),
      "[mesh]: the number of processes must be a multiple of 4 for mesh.dcn 4 x mesh.data "
      "the rest (-1) x mesh.context 1 x mesh.model 1, but the run has 1 process: 1 = 0 x 4 + 1; start a "
      "multiple of 4 processes or change an axis");
  EXPECT_EQ(
      refusal({.dcn = -1, .data = -1}, 4),
      "[mesh]: expected -1 (the rest) at most once; found mesh.dcn the rest (-1) x mesh.data the rest (-1) "
      "x mesh.context 1 x mesh.model 1; give all axes but one a size");
  EXPECT_EQ(refusal({.dcn = 1, .data = 0}, 4),
            "[mesh]: expected sizes of at least 1, or -1 (the rest) once; found mesh.dcn 1 x mesh.data 0 x "
            "mesh.context 1 x mesh.model 1; set mesh.data = -1 and the others to 1 for the default");
  int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_NE(refusal({.dcn = huge, .data = 3}, 4).find("more than can be counted"), std::string::npos);
  EXPECT_NE(refusal({.dcn = huge, .data = -1}, 4).find("must be a multiple of"), std::string::npos);
}

TEST(MeshShape, NumbersRanksRowByRow) {
  MeshShape shape{.dcn = 2, .data = 3, .context = 2, .model = 2};
  for (int rank = 0; rank < 24; ++rank) {
    MeshCoordinate place = shape.coordinate_of(rank);
    EXPECT_EQ(((place.dcn * 3 + place.data) * 2 + place.context) * 2 + place.model, rank);
  }
  EXPECT_EQ(shape.coordinate_of(18), (MeshCoordinate{.dcn = 1, .data = 1, .context = 1, .model = 0}));
  EXPECT_THROW(shape.coordinate_of(24), util::Error);
}

TEST(MeshShape, GroupsDifferOnTheirAxesOnly) {
  MeshShape shape{.dcn = 2, .data = 3, .context = 1, .model = 2};
  EXPECT_EQ(shape.group_of(9, {kModel}), (std::vector<int>{8, 9}));
  EXPECT_EQ(shape.group_of(9, {kData}), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(shape.group_of(9, {kDcn}), (std::vector<int>{3, 9}));
  EXPECT_EQ(shape.group_of(9, {kDcn, kData}), (std::vector<int>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(shape.group_of(9, {}), (std::vector<int>{9}));
  EXPECT_EQ(shape.along({kDcn, kData}), 6);
  EXPECT_EQ(to_string(shape), "dcn 2 x data 3 x context 1 x model 2");
  const MeshShape cut{.dcn = 2, .data = 2, .context = 2};
  EXPECT_EQ(cut.group_of(5, {kContext}), (std::vector<int>{4, 5}));
  EXPECT_EQ(cut.group_of(5, {kData, kContext}), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(cut.row_ranks(), 4);
}

TEST(MeshShape, KnowsTheAxesAcrossHosts) {
  const MeshShape two_hosts = resolve_mesh({.dcn = 2, .data = 2, .model = 2, .ranks_of_host = 4}, 8);
  EXPECT_TRUE(two_hosts.crosses_hosts({kDcn}));
  EXPECT_TRUE(two_hosts.crosses_hosts({kDcn, kData}));
  EXPECT_FALSE(two_hosts.crosses_hosts({kData}));
  EXPECT_FALSE(two_hosts.crosses_hosts({kData, kModel}));
  EXPECT_FALSE(two_hosts.crosses_hosts({}));
  EXPECT_FALSE(resolve_mesh({.dcn = 2}, 8).crosses_hosts({kDcn, kData})) << "one host";
  // Groups of three ranks, of which one has ranks on two hosts.
  EXPECT_TRUE(resolve_mesh({.dcn = 2, .data = 3, .ranks_of_host = 4}, 6).crosses_hosts({kData}));
}

TEST(Mesh, TakesTheLeastRanksOfAHost) {
  run_ranks_as_threads(4, [](Communicator& communicator) {
    const int64_t own = communicator.rank() == 3 ? 1 : 3;  // hosts of three ranks and of one
    const Mesh mesh({.ranks_of_host = own}, testing::borrowed(communicator));
    EXPECT_EQ(mesh.shape().ranks_of_host, 1);
  });
}

TEST(Mesh, HasACommunicatorForEachAxis) {
  run_ranks_as_threads(6, [](Communicator& communicator) {
    Mesh mesh({.dcn = 2, .data = -1}, testing::borrowed(communicator));
    EXPECT_EQ(mesh.shape(), (MeshShape{2, 3, 1, 1}));
    EXPECT_EQ(mesh.coordinate(), mesh.shape().coordinate_of(communicator.rank()));
    for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{}, std::vector{kDcn}, std::vector{kData},
                                              std::vector{kModel}, std::vector{kDcn, kData}}) {
      std::vector<int> expected = mesh.shape().group_of(communicator.rank(), axes);
      Communicator& group = *mesh.group(axes);
      ASSERT_EQ(group.world_size(), static_cast<int>(expected.size()));
      EXPECT_EQ(expected[static_cast<size_t>(group.rank())], communicator.rank());
      auto texts = all_gather_text(group, std::to_string(communicator.rank()), {.unit = "test"});
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(texts[i], std::to_string(expected[i]));
    }
    EXPECT_EQ(mesh.group({kData})->rank(), mesh.coordinate().data);
    EXPECT_EQ(mesh.group({kDcn})->rank(), mesh.coordinate().dcn);
    EXPECT_EQ(mesh.group({kData, kDcn}), mesh.world()) << "all ranks, whatever the order of the axes";
    EXPECT_EQ(mesh.group({kData, kModel}), mesh.group({kData})) << "an axis of one rank adds none";
    communicator.barrier({.unit = "end"});
  });
}

TEST(Mesh, WithContextHasGroupsForRowsForShardsAndForLayers) {
  run_ranks_as_threads(8, [](Communicator& communicator) {
    Mesh mesh({.dcn = 2, .data = -1, .context = 2}, testing::borrowed(communicator));
    EXPECT_EQ(mesh.context()->world_size(), 2);
    EXPECT_EQ(mesh.context()->rank(), mesh.coordinate().context);
    EXPECT_EQ(mesh.group({kData, kContext})->world_size(), 4);
    EXPECT_THROW(mesh.group({kDcn, kContext}), util::Error);
    EXPECT_EQ(mesh.group({kDcn, kData})->world_size(), 4);
    EXPECT_EQ(mesh.group({kDcn, kData, kContext}), mesh.world());
    communicator.barrier({.unit = "end"});
  });
}

TEST(Mesh, LayersNeverQueueBehindUnits) {
  run_ranks_as_threads(2, [](Communicator& communicator) {
    Mesh all({.data = 1, .context = 2}, testing::borrowed(communicator));
    EXPECT_EQ(all.group({kData, kContext}), all.world());
    EXPECT_EQ(all.context()->world_size(), 2);
    EXPECT_NE(all.context(), all.world());
    communicator.barrier({.unit = "end"});
  });
}

TEST(Mesh, OfOneAxisIsTheWorld) {
  run_ranks_as_threads(3, [](Communicator& communicator) {
    auto world = testing::borrowed(communicator);
    Mesh slices({}, world), replicas({.dcn = -1, .data = 1}, world);
    EXPECT_EQ(slices.group({kData}), slices.world());
    EXPECT_EQ(slices.group({kDcn})->world_size(), 1);
    EXPECT_EQ(replicas.group({kDcn}), replicas.world());
    EXPECT_EQ(replicas.group({kData})->world_size(), 1);
  });
}

TEST(Mesh, WithModelHasGroupsOfWhatIsRepeatedAndOfLayers) {
  run_ranks_as_threads(8, [](Communicator& communicator) {
    Mesh mesh({.dcn = 2, .data = -1, .model = 2}, testing::borrowed(communicator));
    EXPECT_EQ(mesh.model()->world_size(), 2);
    EXPECT_EQ(mesh.model()->rank(), mesh.coordinate().model);
    EXPECT_NE(mesh.model(), mesh.group({kModel})) << "layers wait for no reduction of units";
    EXPECT_EQ(mesh.group({kData, kModel})->world_size(), 4);
    EXPECT_EQ(mesh.group({kDcn, kModel})->world_size(), 4);
    EXPECT_EQ(mesh.group({kDcn, kData, kModel}), mesh.world());
    EXPECT_EQ(mesh.group({kDcn, kData})->world_size(), 4);
    communicator.barrier({.unit = "end"});
  });
}

}  // namespace
}  // namespace fsdp::comm
