// Every elementwise map, once: what makes code, tables or documents of maps defines the macros that it wants and
// includes this, as often as it likes. A new operator of one or two tensors is a line here, its entry in
// ops/elementwise.cpp and its declaration.
//
// A line is
//   the operator that it is, and its enumerator in MapOp;
//   the functor that computes it (functors.h);
//   the number of its inputs;
//   of which types they may be: floats, or integers, too (`any`);
//   the unit of kernels that it is compiled in; elements of `math` cost as much as several additions;
//   its expression: C++ as of namespace tile::op, of inputs x, or a and b, or a, b and c, one element or a vector V of
//   them. The numbers of a map that has some are doubles; those of an operator's map are its attributes.
// Results are of the type of the inputs; of `predicate`, which come last, bool.
//
// TESSERA_MAP: an operator with a public function of its inputs alone.
// TESSERA_GRADIENT_MAP: one for backward. Its first input is the gradient of a result.
// TESSERA_NUMBER_MAP: one with numbers, whose kernel list says how they come from attributes.
// TESSERA_MAP_OF: an operator, the map that computes it with other numbers or in place, or the copy, and what that
// comes to.
#ifndef TESSERA_MAP
#define TESSERA_MAP(name, Functor, inputs, types, unit, ...)
#endif
#ifndef TESSERA_GRADIENT_MAP
#define TESSERA_GRADIENT_MAP(name, Functor, inputs, types, unit, ...)
#endif
#ifndef TESSERA_NUMBER_MAP
#define TESSERA_NUMBER_MAP(name, Functor, inputs, types, unit, numbers, ...)
#endif
#ifndef TESSERA_MAP_OF
#define TESSERA_MAP_OF(name, map, ...)
#endif
// clang-format off

TESSERA_MAP(neg,         Neg,        1, any,    arithmetic, -x)
TESSERA_MAP(abs,         Abs,        1, any,    arithmetic, abs(x))
TESSERA_MAP(sign,        Sign,       1, any,    arithmetic, select(x > V(0), V(1), select(x < V(0), V(-1), x)))
TESSERA_MAP(square,      Square,     1, any,    arithmetic, x * x)
TESSERA_MAP(relu,        Relu,       1, any,    arithmetic, max(x, V(0)))
TESSERA_MAP(sqrt,        Sqrt,       1, floats, rounding,   sqrt(x))
TESSERA_MAP(rsqrt,       Rsqrt,      1, floats, rounding,   rsqrt(x))
TESSERA_MAP(reciprocal,  Reciprocal, 1, floats, rounding,   reciprocal(x))
TESSERA_MAP(floor,       Floor,      1, floats, rounding,   floor(x))
TESSERA_MAP(ceil,        Ceil,       1, floats, rounding,   ceil(x))
TESSERA_MAP(round,       Round,      1, floats, rounding,   round(x))
TESSERA_MAP(trunc,       Trunc,      1, floats, rounding,   trunc(x))
TESSERA_MAP(exp,         Exp,        1, floats, math,       exp(x))
TESSERA_MAP(expm1,       Expm1,      1, floats, math,       exp_less_one(x))
TESSERA_MAP(exp2,        Exp2,       1, floats, math,       exp2(x))
TESSERA_MAP(log,         Log,        1, floats, math,       log(x))
TESSERA_MAP(log1p,       Log1p,      1, floats, math,       log_of_one_plus(x))
TESSERA_MAP(sin,         Sin,        1, floats, math,       sin(x))
TESSERA_MAP(cos,         Cos,        1, floats, math,       cos(x))
TESSERA_MAP(tan,         Tan,        1, floats, math,       tan(x))
TESSERA_MAP(asin,        Asin,       1, floats, math,       asin(x))
TESSERA_MAP(acos,        Acos,       1, floats, math,       acos(x))
TESSERA_MAP(atan,        Atan,       1, floats, math,       atan(x))
TESSERA_MAP(tanh,        Tanh,       1, floats, math,       tanh(x))
TESSERA_MAP(sigmoid,     Sigmoid,    1, floats, math,       sigmoid(x))
TESSERA_MAP(erf,         Erf,        1, floats, math,       erf(x))
TESSERA_MAP(erfinv,      Erfinv,     1, floats, math,       erfinv(x))
TESSERA_MAP(gelu,        GeluErf,    1, floats, math,       gelu_erf(x))
TESSERA_MAP(gelu_tanh,   GeluTanh,   1, floats, math,       gelu_tanh(x))
TESSERA_MAP(silu,        Silu,       1, floats, math,       silu(x))
TESSERA_MAP(softplus,    Softplus,   1, floats, math,       max(x, V(0)) + log_of_one_plus(exp(-abs(x))))

TESSERA_MAP(add,         Add,        2, any,    arithmetic, a + b)
TESSERA_MAP(sub,         Sub,        2, any,    arithmetic, a - b)
TESSERA_MAP(mul,         Mul,        2, any,    arithmetic, a * b)
TESSERA_MAP(div,         Div,        2, floats, arithmetic, a / b)
TESSERA_MAP(floor_div,   FloorDiv,   2, any,    arithmetic, floor_quotient(a, b))
TESSERA_MAP(remainder,   Remainder,  2, any,    arithmetic, floor_remainder(a, b))
TESSERA_MAP(maximum,     Maximum,    2, any,    arithmetic, select(b == b, max(a, b), b)) // NaN wins, as everywhere
TESSERA_MAP(minimum,     Minimum,    2, any,    arithmetic, select(b == b, min(a, b), b))
TESSERA_MAP(pow,         Pow,        2, any,    rounding,   power(a, b))
TESSERA_MAP(atan2,       Atan2,      2, floats, math,       atan2(a, b))
TESSERA_MAP(hypot,       Hypot,      2, floats, rounding,   hypot(a, b))

TESSERA_MAP(where,       Where,      3, any,    arithmetic, select(is_true(convert<mask_element_t<V>>(a)), b, c))

TESSERA_NUMBER_MAP(clamp,       Clamp,      1, any,    arithmetic, (low, high),    min(max(x, number<V>(low)), number<V>(high)))
TESSERA_NUMBER_MAP(pow_scalar,  PowScalar,  1, floats, math,       (value),        pow(x, number<V>(value)))
TESSERA_NUMBER_MAP(scale_shift, ScaleShift, 1, any,    arithmetic, (scale, shift), fma(x, number<V>(scale), number<V>(shift)))
TESSERA_NUMBER_MAP(add_,        AddScaled,  2, any,    arithmetic, (value),        fma(b, number<V>(value), a))

// In one pass: a is the gradient of the result, b the input or, where noted, the result.
TESSERA_GRADIENT_MAP(relu_backward,      ReluGrad,     2, floats, arithmetic, select(b > V(0), a, V(0)))  // or the result
TESSERA_GRADIENT_MAP(tanh_backward,      TanhGrad,     2, floats, rounding,   a * (V(1) - b * b))         // the result
TESSERA_GRADIENT_MAP(sigmoid_backward,   SigmoidGrad,  2, floats, rounding,   a * (b * (V(1) - b)))       // the result
TESSERA_GRADIENT_MAP(gelu_backward,      GeluErfGrad,  2, floats, math,       a * gelu_erf_grad(b))
TESSERA_GRADIENT_MAP(gelu_tanh_backward, GeluTanhGrad, 2, floats, math,       a * gelu_tanh_grad(b))
TESSERA_GRADIENT_MAP(silu_backward,      SiluGrad,     2, floats, math,       a * silu_grad(b))
TESSERA_GRADIENT_MAP(softplus_backward,  SoftplusGrad, 2, floats, math,       a * sigmoid(b))
TESSERA_NUMBER_MAP(clamp_backward,       ClampGrad,    2, floats, arithmetic, (low, high), select(b >= number<V>(low), select(b <= number<V>(high), a, V(0)), V(0)))

TESSERA_MAP(logical_not, LogicalNot,   1, any,    predicate, x == V(0))
TESSERA_MAP(isnan,       IsNan,        1, floats, predicate, x != x)
TESSERA_MAP(isinf,       IsInf,        1, floats, predicate, abs(x) == number<V>(__builtin_inf()))
TESSERA_MAP(isfinite,    IsFinite,     1, floats, predicate, abs(x) < number<V>(__builtin_inf()))
TESSERA_MAP(eq,          Equal,        2, any,    predicate, a == b)
TESSERA_MAP(ne,          NotEqual,     2, any,    predicate, a != b)
TESSERA_MAP(lt,          Less,         2, any,    predicate, a < b)
TESSERA_MAP(le,          LessEqual,    2, any,    predicate, a <= b)
TESSERA_MAP(gt,          Greater,      2, any,    predicate, a > b)
TESSERA_MAP(ge,          GreaterEqual, 2, any,    predicate, a >= b)
TESSERA_MAP(logical_and, LogicalAnd,   2, any,    predicate, is_true(a) & is_true(b))
TESSERA_MAP(logical_or,  LogicalOr,    2, any,    predicate, is_true(a) | is_true(b))
TESSERA_MAP(logical_xor, LogicalXor,   2, any,    predicate, is_true(a) ^ is_true(b))

TESSERA_MAP_OF(add_scalar,  scale_shift, x + number<V>(value))
TESSERA_MAP_OF(mul_scalar,  scale_shift, x * number<V>(value))
TESSERA_MAP_OF(mul_,        mul,         a * b)
TESSERA_MAP_OF(mul_scalar_, scale_shift, x * number<V>(value))
TESSERA_MAP_OF(cast,        copy,        x)
TESSERA_MAP_OF(fill_,       copy,        number<V>(value))
TESSERA_MAP_OF(copy_,       copy,        b)

// clang-format on
#undef TESSERA_MAP
#undef TESSERA_GRADIENT_MAP
#undef TESSERA_NUMBER_MAP
#undef TESSERA_MAP_OF
