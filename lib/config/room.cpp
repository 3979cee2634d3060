// Kept so that the room builds.
namespace fsdp::config {}
