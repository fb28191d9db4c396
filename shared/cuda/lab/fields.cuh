// LAB_FIELDS(Struct, first, second, …) after a struct that kernels take by value, or by a pointer to
// what the host has filled in: the host's struct is held against these fields, name by name, at every
// launch. Up to 27 fields, in any order; at namespace scope, outside of every namespace.
#pragma once

#ifdef EMU_FIELDS
#define LAB_FIELD(Type, field)                                                                     \
    {#field, ::emu::field_type<decltype(Type::field)>::text.c, offsetof(Type, field),              \
     sizeof(Type::field)},
#define LAB_EXPAND(...) LAB_EXPAND2(LAB_EXPAND2(LAB_EXPAND2(__VA_ARGS__)))
#define LAB_EXPAND2(...) LAB_EXPAND3(LAB_EXPAND3(LAB_EXPAND3(__VA_ARGS__)))
#define LAB_EXPAND3(...) LAB_EXPAND4(LAB_EXPAND4(LAB_EXPAND4(__VA_ARGS__)))
#define LAB_EXPAND4(...) __VA_ARGS__
#define LAB_EACH(Type, field, ...) LAB_FIELD(Type, field) __VA_OPT__(LAB_AGAIN LAB_PARENS (Type, __VA_ARGS__))
#define LAB_PARENS ()
#define LAB_AGAIN() LAB_EACH
#define LAB_FIELDS(Type, ...)                                                                      \
    namespace emu {                                                                                \
    template <> struct fields<Type> {                                                              \
        static constexpr EmuField table[] = {LAB_EXPAND(LAB_EACH(Type, __VA_ARGS__))};             \
        static constexpr uint32_t count = sizeof table / sizeof *table;                            \
    };                                                                                             \
    }
#else
#define LAB_FIELDS(...)
#endif
