# Whether the CUDA engine is built, and for which GPUs. Sets CPR_HAS_CUDA; if it is true, the language CUDA is enabled and
# the target cpr_cuda_options has the options of all of the engine's CUDA sources.
set(CPR_CUDA AUTO CACHE STRING "AUTO: where nvcc is found and works; ON: or else an error; OFF: never, without looking")
set(CPR_CUDA_ARCHITECTURES "" CACHE STRING
  "release, or a list as of CMAKE_CUDA_ARCHITECTURES with commas or semicolons; by default that of the GPU that is there")
set_property(CACHE CPR_CUDA PROPERTY STRINGS AUTO ON OFF)

set(CPR_HAS_CUDA OFF)
string(TOUPPER "${CPR_CUDA}" CPR_CUDA_WANTED)
if(NOT CPR_CUDA_WANTED MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CPR_CUDA: expected AUTO, ON or OFF, got '${CPR_CUDA}'")
endif()
if(CPR_CUDA_WANTED STREQUAL "AUTO" AND CPR_SANITIZE)
  set(CPR_CUDA_WANTED OFF)  # the sanitizers are for the host's code
endif()
if(CPR_CUDA_WANTED STREQUAL "OFF")
  return()
endif()

# As CMake looks for it, and where toolkits are installed.
if(DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CPR_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
  if(CPR_NVCC)
    set(CMAKE_CUDA_COMPILER ${CPR_NVCC})
  elseif(CPR_CUDA_WANTED STREQUAL "ON")
    message(FATAL_ERROR "CPR_CUDA=ON needs nvcc, the compiler of the CUDA toolkit, which is neither in PATH nor in "
      "$CUDA_HOME/bin or /usr/local/cuda/bin. Install the toolkit, name the compiler in CUDACXX, or build the CPU "
      "engine alone with CPR_CUDA=OFF.")
  else()
    message(STATUS "CUDA engine: no, nvcc was not found")
    return()
  endif()
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  if(DEFINED ENV{CUDAHOSTCXX})
    set(CMAKE_CUDA_HOST_COMPILER $ENV{CUDAHOSTCXX})
  endif()
endif()

# The targets, which must be known before the language is enabled. Machine code for every generation takes minutes, so a
# plain build is for the GPU that it can see. Without one: code for 9.0, and PTX that the driver of any GPU from 7.5 on
# compiles when it is first run.
if(CPR_CUDA_ARCHITECTURES STREQUAL "release")
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90-real 100-real 120)
elseif(CPR_CUDA_ARCHITECTURES)
  string(REPLACE "," ";" CMAKE_CUDA_ARCHITECTURES "${CPR_CUDA_ARCHITECTURES}")
elseif(DEFINED ENV{CUDAARCHS} AND NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
elseif(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 90-real)
  find_program(CPR_NVIDIA_SMI nvidia-smi NO_CACHE)
  if(CPR_NVIDIA_SMI)
    execute_process(COMMAND ${CPR_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      RESULT_VARIABLE failed OUTPUT_VARIABLE capabilities ERROR_QUIET TIMEOUT 30)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    if(NOT failed AND capabilities)
      list(REMOVE_DUPLICATES capabilities)
      string(REPLACE "." "" CMAKE_CUDA_ARCHITECTURES "${capabilities}")
    endif()
  endif()
endif()

foreach(target IN LISTS CMAKE_CUDA_ARCHITECTURES)
  if(NOT target MATCHES "^[0-9]+(-real|-virtual)?$")
    message(FATAL_ERROR "CPR_CUDA_ARCHITECTURES: expected `release` or numbers with or without -real or -virtual, such as "
      "80-real,90; got '${target}'")
  endif()
endforeach()

# CMake would stop at a compiler that does not work, say one that refuses this version of g++.
if(CPR_CUDA_WANTED STREQUAL "AUTO")
  file(WRITE ${CMAKE_BINARY_DIR}/nvcc_works.cu "__global__ void kernel() {}\n")
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} -ccbin=${CMAKE_CUDA_HOST_COMPILER} -std=c++20 -c nvcc_works.cu -o nvcc_works.o
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(WARNING "CUDA engine: no, ${CMAKE_CUDA_COMPILER} does not work here:\n${output}")
    return()
  endif()
endif()
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 doesn't know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "the CUDA engine needs nvcc 12.0 or newer (C++20), got ${CMAKE_CUDA_COMPILER_VERSION}; "
    "CPR_CUDA=OFF builds the CPU engine alone")
endif()
find_package(CUDAToolkit REQUIRED)

set(CPR_HAS_CUDA ON)
message(STATUS "CUDA engine: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# The arithmetic of the CPU engine: each operation rounded on its own, division and square root correctly, denormals kept.
# -fmad=false also reaches the PTX, whose additions and multiplications then say .rn and are never fused by a driver.
add_library(cpr_cuda_options INTERFACE)
target_include_directories(cpr_cuda_options INTERFACE csrc)
target_compile_options(cpr_cuda_options INTERFACE
  -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
  -Xcompiler=${CPR_OPTIMIZE},-ffp-contract=off,-fno-math-errno,-Wall,-Wextra,-Wshadow)
if(CPR_WERROR)
  target_compile_options(cpr_cuda_options INTERFACE -Werror=all-warnings -Xcompiler=-Werror)
endif()
