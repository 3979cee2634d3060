#include <fsdp/error.h>

#include <iostream>

int main() {
  try {
    fsdp::util::fail(fsdp::ErrorKind::kUsage, "thrown by the library");
  } catch (const fsdp::Error& error) {
    std::cout << error.what() << std::endl;
  }
}
