# cmake -D FOLDER=src/profiler/report_page -D OUT=FILE.cpp -P embed_page.cmake: the files of the profiler's page as strings of
# C++ (src/profiler/report_page.h).
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/page.html ${FOLDER}/*.css ${FOLDER}/*.js)
list(SORT files)
set(text "// Made by cmake/embed_page.cmake.\n#include \"profiler/report_page.h\"\n\nnamespace tessera::profiler {\n\n")
string(APPEND text "std::string_view report_page_part(std::string_view name) {\n")
foreach(file ${files})
  file(READ ${FOLDER}/${file} content)
  string(APPEND text "  if (name == \"${file}\") return R\"page_part(${content})page_part\";\n")
endforeach()
string(APPEND text "  return {};\n}\n\n}  // namespace tessera::profiler\n")
file(WRITE ${OUT} "${text}")
