# Elementary functions for hot loops on the CPU: branch-free, so that the compiler turns them into vector instructions.

"""
    fast_exp(x)

`exp(x)` within 2 units in the last place, for `Float64` and `Float32`; 0 where the result would be subnormal.
"""
@inline function fast_exp(x::Float64)
    # x = n log 2 + r with |r| <= log(2)/2; adding and taking off 1.5 * 2^52 rounds to the whole number n
    shifted = muladd(x, 1.4426950408889634, 6.755399441055744e15)
    n = shifted - 6.755399441055744e15
    r = muladd(n, -1.9082149292705877e-10, muladd(n, -0.6931471803691238, x))
    y = evalpoly(r, EXP_TAYLOR_64)
    y = reinterpret(Float64, reinterpret(Int64, y) + reinterpret(Int64, shifted) << 52)
    y = ifelse(x > 709.782, Inf, ifelse(x < -708.39, 0.0, y))
    return ifelse(isnan(x), x, y)
end

@inline function fast_exp(x::Float32)
    shifted = muladd(x, 1.442695f0, 1.2582912f7)
    n = shifted - 1.2582912f7
    r = muladd(n, -1.4286068f-6, muladd(n, -0.69314575f0, x))
    y = evalpoly(r, EXP_TAYLOR_32)
    y = reinterpret(Float32, reinterpret(Int32, y) + reinterpret(Int32, shifted) << 23)
    y = ifelse(x > 88.72f0, Inf32, ifelse(x < -87.33f0, 0.0f0, y))
    return ifelse(isnan(x), x, y)
end

const EXP_TAYLOR_64 = Tuple(1 / factorial(k) for k in 0:13)
const EXP_TAYLOR_32 = Tuple(Float32(1 / factorial(k)) for k in 0:8)
