const LAYOUTS = [P.Layout(3, 5, 1), P.Layout(2, 4, 3), P.Layout(0, 4, 2), P.Layout(4, 0, 0)]
const ALL_FAMILIES = [P.MeanField(), P.FullRank(), P.Structured(), P.Structured(; standardized=false)]

"""Dense C of the pattern, entry by entry."""
function dense(pattern, nonzeros)
    C = zeros(pattern.dim, pattern.dim)
    for j in 1:(pattern.dim), k in pattern.colptr[j]:(pattern.colptr[j + 1] - 1)
        C[j + k - pattern.colptr[j], j] = nonzeros[k]
    end
    return C
end

@testset "parameter counts are those of table 1" begin
    # rpoisson-small, volatility-small and irt-small: (d_z, N, d_y) and the three published counts
    for (layout, counts) in [
        (P.Layout(16, 1961, 1), (3954, 35450, 1957230)),
        (P.Layout(33, 262, 6), (3210, 59544, 1290420)),
        (P.Layout(193, 3348, 1), (7082, 671774, 6274652)),
    ]
        @test P.n_params.((P.MeanField(), P.Structured(), P.FullRank()), Ref(layout)) == counts
    end
end

@testset "the structured pattern is the bordered block diagonal" begin
    layout = P.Layout(2, 3, 2)
    pattern = P.ScalePattern(P.Structured(), layout)
    expected = falses(8, 8)
    expected[:, 1:2] .= true
    expected[1, 2] = false
    for n in 1:3
        block = (2n + 1):(2n + 2)
        expected[block, block] .= tril(trues(2, 2))
    end
    @test (dense(pattern, ones(P.n_nonzeros(pattern))) .!= 0) == expected
end

@testset "product and pullbacks equal dense algebra: $(nameof(typeof(family))) $layout $T" for
    family in ALL_FAMILIES[1:3], layout in LAYOUTS, T in (Float64, Float32)

    rng = MersenneTwister(1)
    pattern = P.ScalePattern(family, layout)
    nonzeros, U, G = randn(rng, T, P.n_nonzeros(pattern)), randn(rng, T, P.dim(layout), 4), randn(rng, T, P.dim(layout), 4)
    C = dense(pattern, nonzeros)
    tolerance = 20 * eps(T) * P.dim(layout)
    product, pullback = rrule(P.scale_mul, pattern, nonzeros, U)
    @test product ≈ C * U rtol = tolerance
    @test eltype(product) == T
    _, _, d_nonzeros, d_U = unthunk.(pullback(G))
    outer = G * U'
    @test d_nonzeros ≈ [outer[j + k - pattern.colptr[j], j] for j in 1:(pattern.dim) for k in pattern.colptr[j]:(pattern.colptr[j + 1] - 1)] rtol =
        tolerance
    @test d_U ≈ C' * G rtol = tolerance
end

@testset "tiles, groups of columns and of samples: $(nameof(typeof(family))) M=$M" for
    family in ALL_FAMILIES, M in (1, 2, 4, 5, 8)

    # more rows than a tile, and numbers of dense columns on both sides of a multiple of four
    rng = MersenneTwister(12)
    for layout in (P.Layout(7, 600, 1), P.Layout(12, 101, 3))
        pattern = P.ScalePattern(family, layout)
        d, d_z = P.dim(layout), layout.n_global
        flat, U, G = randn(rng, P.n_params(family, layout)), randn(rng, d, M), randn(rng, d, M)
        C, m = dense(pattern, flat[(d + 1):end]), flat[1:d]
        direct = family isa P.Structured && !family.standardized
        heads = direct ? [C[1:d_z, 1:d_z] * U[1:d_z, :] .+ m[1:d_z]; U[(d_z + 1):end, :]] : U
        expected = C * heads .+ m
        direct && (expected[1:d_z, :] = heads[1:d_z, :])
        points = P.transform!(similar(U), family, layout, pattern, flat, U)
        @test points ≈ expected rtol = 1e-12
        @test P.transform(family, layout, pattern, flat, U) ≈ expected rtol = 1e-12
        out = P.pullback!(similar(flat), family, layout, pattern, flat, U, points, copy(G))
        by_zygote = only(Zygote.gradient(x -> sum(G .* P.transform(family, layout, pattern, x, U)), flat))
        dm, dC = G, G * heads'
        if direct
            dm = [G[1:d_z, :] + C[(d_z + 1):end, 1:d_z]' * G[(d_z + 1):end, :]; G[(d_z + 1):end, :]]
            dC = [dm[1:d_z, :] * U'; dC[(d_z + 1):end, :]]
        end
        dense_answer = [vec(sum(dm; dims=2)); [dC[i, j] for j in 1:d for i in j:(j + pattern.colptr[j + 1] - pattern.colptr[j] - 1)]]
        @test out ≈ dense_answer rtol = 1e-12
        @test by_zygote ≈ dense_answer rtol = 1e-12
    end
end

@testset "the non-standardized form is y = m + A z + C u" begin
    layout = P.Layout(2, 3, 2)
    family = P.Structured(; standardized=false)
    pattern = P.ScalePattern(family, layout)
    rng = MersenneTwister(3)
    flat, U = randn(rng, P.n_params(family, layout)), randn(rng, 8, 5)
    C, m = dense(pattern, flat[9:end]), flat[1:8]
    z = C[1:2, 1:2] * U[1:2, :] .+ m[1:2]
    y = C[3:8, 1:2] * z + C[3:8, 3:8] * U[3:8, :] .+ m[3:8]
    @test P.transform(family, layout, pattern, flat, U) ≈ vcat(z, y)
end

@testset "entropy" begin
    layout = P.Layout(2, 3, 1)
    pattern = P.ScalePattern(P.Structured(), layout)
    flat = [zeros(5); abs.(randn(MersenneTwister(4), P.n_nonzeros(pattern))) .+ 0.1]
    C = dense(pattern, flat[6:end])
    # of a Gaussian with covariance C C'
    @test P.entropy(P.Structured(), pattern, flat) ≈ (5 * (log(2π) + 1) + log(abs2(prod(C[i, i] for i in 1:5)))) / 2
end

@testset "memory is linear in the nonzeros: no d x d array, no sparse cotangent" begin
    layout = P.Layout(5, 20_000, 1)
    family = P.Structured()
    pattern = P.ScalePattern(family, layout)
    nonzeros, U = randn(P.n_nonzeros(pattern)), randn(P.dim(layout), 2)
    function pull()
        product, pullback = rrule(P.scale_mul, pattern, nonzeros, U)
        return unthunk(pullback(product)[3])
    end
    pull()
    bytes = @allocated pull()
    @test bytes < 3 * 8 * (P.n_nonzeros(pattern) + length(U))
end

@testset "base distributions are standardized" begin
    step = 1e-3
    grid = collect(-60:step:60)
    for base in (P.Gaussian(), P.Laplace(), P.StudentT(12.0))
        density = exp.(P.base_logpdf.(Ref(base), grid))
        moment(k) = sum(density .* grid .^ k) * step
        @test moment(0) ≈ 1 atol = 1e-5
        @test moment(2) ≈ 1 atol = 1e-5
        @test moment(4) ≈ P.kurtosis(base) rtol = 1e-4
        @test -sum(density .* P.base_logpdf.(Ref(base), grid)) * step ≈ P.base_entropy(base) atol = 1e-4
    end
    @test_throws ArgumentError P.StudentT(4.0)
end

@testset "draws have the moments of their base" begin
    for base in (P.Gaussian(), P.Laplace(), P.StudentT(12.0)), T in (Float64, Float32)
        u = P.fill_noise!(MersenneTwister(5), base, zeros(T, 400_000))
        @test abs(sum(u) / length(u)) < 5 / sqrt(length(u))
        @test abs(sum(abs2, u) / length(u) - 1) < 5 * sqrt((P.kurtosis(base) - 1) / length(u))
    end
end
