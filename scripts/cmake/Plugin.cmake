# fsdp_add_plugin(NAME SOURCES...): libNAME.so, a plug-in for run.plugins (<fsdp/plugin.h>).
function(fsdp_add_plugin name)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE fsdp::plugin_interface)
  target_compile_features(${name} PRIVATE cxx_std_20)
endfunction()
