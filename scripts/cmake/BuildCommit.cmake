# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P BuildCommit.cmake: writes a header with the commit of a git checkout,
# and none where FOLDER is no checkout of its own or git is not there. An unchanged header is left as it is.
cmake_minimum_required(VERSION 3.25)
set(commit "")
find_program(GIT_PROGRAM git)
if(GIT_PROGRAM)
  execute_process(COMMAND ${GIT_PROGRAM} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE top ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
  file(REAL_PATH "${SOURCE}" source)
  if(result EQUAL 0 AND top STREQUAL source)
    execute_process(COMMAND ${GIT_PROGRAM} describe --always --exclude=* --abbrev=12 --dirty WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#define FSDP_COMMIT \"@commit@\"\n" @ONLY)
