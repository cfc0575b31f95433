// What tests say to the stand-in for libamdhip64.so, and ask of it: look the functions up with dlsym(RTLD_DEFAULT) when
// the plugin is loaded.
#pragma once

extern "C" {
/// The call of `function` after the next `skip` ones, and all later ones, return `status`; 0: they work again. With a
/// null `function` everything works again.
using StandInFail = void(const char* function, long skip, int status);
/// How often `function` was called.
using StandInCalls = long(const char* function);
}

/// Their names there.
inline constexpr const char* stand_in_fail_name = "stand_in_fail";
inline constexpr const char* stand_in_calls_name = "stand_in_calls";
