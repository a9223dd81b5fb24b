# Users' own Turing models, and NUTS on them.

const SCHOOLS = (y=[28.0, 8, -3, 7, -1, 1, 18, 12], sigma=[15.0, 10, 16, 11, 9, 11, 10, 18])

const CENTRED = """
@model function eight_schools(y, sigma, ::Type{T}=Float64) where {T}
    mu ~ Normal(0, 5)
    tau ~ truncated(Cauchy(0, 5); lower=0)
    theta = Vector{T}(undef, length(y))
    for j in eachindex(y)
        theta[j] ~ Normal(mu, tau)
        y[j] ~ Normal(theta[j], sigma[j])
    end
end
"""

normal(x, m, s) = -abs2((x - m) / s) / 2 - log(s) - log(2π) / 2

function eight_schools_by_hand(point)
    mu, log_tau, theta = point[1], point[2], point[3:end]
    tau = exp(log_tau)
    prior = normal(mu, 0, 5) + log(2 / (π * 5)) - log1p((tau / 5)^2) + log_tau
    return prior + sum(normal.(theta, mu, tau)) + sum(normal.(SCHOOLS.y, theta, SCHOOLS.sigma))
end

"""The message of what `f` throws, which must be a ModelError of one paragraph."""
function message(f)
    error = try
        f()
        nothing
    catch caught
        caught
    end
    @test error isa P.ModelError
    text = sprint(showerror, error)
    @test !occursin("Stacktrace", text)
    @test length(text) < 1200
    return text
end

function build(program, locals, ad="forwarddiff")
    started = P.start_build(program, locals, ad)
    while P.advance_build!(started)
    end
    return P.built_model(started)
end
build(source::String, data, locals, ad="forwarddiff") = build(P.turing_program(source, data), locals, ad)

@testset "eight schools: layout, values and gradients by every backend" begin
    program = P.turing_program(CENTRED, SCHOOLS)
    @test P.variable_names(program) == ["mu", "tau", "theta"]
    points = 0.8 .* randn(MersenneTwister(7), 10, 3)
    for ad in ("", "forwarddiff", "reversediff", "compiled_reversediff", "mooncake")
        model = build(program, ["theta"], ad)
        @test model.layout == P.Layout(2, 8, 1)
        @test P.global_labels(model) == ["mu", "linked tau"]
        @test P.log_density(model, reshape(P.reference_point(model), :, 1)) |> only |> isfinite
        @test P.ad_of(model) == (isempty(ad) ? "forwarddiff" : ad)
        @test P.log_density(model, points) ≈ [eight_schools_by_hand(p) for p in eachcol(points)]
        slopes = similar(points)
        P.log_density_gradient!(slopes, model, points, nothing)
        for k in 1:10, m in 1:3
            shift = 1e-5 .* (1:10 .== k)
            up, down = eight_schools_by_hand(points[:, m] .+ shift), eight_schools_by_hand(points[:, m] .- shift)
            @test slopes[k, m] ≈ (up - down) / 2e-5 atol = 1e-6
        end
    end
end

@testset "a backend is tried where its compilation may pay, and taken where it is clearly faster" begin
    started = P.start_build(P.turing_program(CENTRED, SCHOOLS), ["theta"])
    search = started.search
    @test P.advance_build!(started) && P.advance_build!(started)
    @test first(search.found) == "forwarddiff"
    @test 0 < search.seconds < 0.1
    for (seconds, worth) in (1e-6 => [], 1e-4 => ["reversediff"], 1e-3 => ["reversediff", "mooncake"])
        search.seconds = seconds
        @test filter(name -> TuringExt.is_worth_trying(search, name), ["reversediff", "mooncake", "forwarddiff"]) == worth
    end
    search.seconds = 1e-9
    @test !P.advance_build!(started)
    @test P.ad_of(P.built_model(started)) == "forwarddiff"
    # the other one takes some 0.1 ms
    for (seconds, expected) in (1e-1 => "reversediff", 1e-9 => "forwarddiff")
        again = TuringExt.Search(search.model, search.values, search.starts, search.plain, ["reversediff"])
        again.found, again.seconds = search.found, 1e-1  # slow enough to be worth a try
        @test TuringExt.advance!(again)
        again.seconds = seconds
        @test TuringExt.advance!(again)
        @test first(TuringExt.chosen(again)) == expected
    end
end

const GROUPS = """
@model function varying(x, group, y, n_groups)
    s ~ filldist(Exponential(1), 2)
    sigma ~ Exponential(1)
    level ~ filldist(Normal(0, 1), n_groups)
    slopes ~ arraydist([MvNormal(zeros(2), [s[1]^2 0.0; 0.0 s[2]^2]) for _ in 1:n_groups])
    y ~ MvNormal(level[group] .+ vec(sum(slopes[:, group] .* x'; dims=1)), sigma^2 * I)
end
"""

@testset "a vector local and a matrix local share their blocks" begin
    rng = MersenneTwister(8)
    data = (x=randn(rng, 12, 2), group=repeat(1:4, 3), y=randn(rng, 12), n_groups=4)
    model = build(GROUPS, data, ["slopes", "level"], "reversediff")
    @test model.layout == P.Layout(3, 4, 3)
    point = collect(1.0:15.0) ./ 10
    natural = Dict(P.constrain(model, reshape(point, :, 1)))
    for n in 1:4
        block = point[(3 + 3n - 2):(3 + 3n)]
        @test natural["slopes"][:, n, 1] ≈ block[1:2]
        @test natural["level"][n, 1] ≈ block[3]
    end
    @test natural["s"][:, 1] ≈ exp.(point[1:2])
    @test P.global_labels(model) == ["linked s[1]", "linked s[2]", "linked sigma"]
    names = P.variable_names(model)
    @test P.unconstrain(model, names, [natural[name] for name in names]) ≈ reshape(point, :, 1)
    @test occursin("line up", message(() -> build(GROUPS, data, ["level", "s"])))
end

@testset "globals alone, with and without a run of the model" begin
    source = """
    @model function globals(y, ::Type{T}=Float64) where {T}
        s ~ filldist(Exponential(1), 2)
        L ~ LKJCholesky(2, 1.0)
        p ~ Dirichlet(3, 1.0)
        HERE
        e ~ filldist(Normal(sum(s), 1), 4)
        y ~ MvNormal(e, I)
    end
    """
    for (here, fixed) in ("" => true, "u ~ Uniform(0, s[1])" => false, "a = Vector{T}(undef, 1); a[1] ~ Exponential(1)" => false)
        model = build(replace(source, "HERE" => here), (; y=zeros(4)), ["e"])
        @test isnothing(model.transforms) != fixed
        points = randn(MersenneTwister(14), P.dim(model.layout), 3)
        everything = Dict(P.constrain(model, points))
        globals = P.constrain_globals(model, points[1:(model.layout.n_global), :])
        @test first.(globals) == filter(!=("e"), P.variable_names(model))
        for (name, value) in globals
            @test value ≈ everything[name]
        end
    end
end

@testset "locals of other kinds" begin
    source = """
    @model function kinds(n, ::Type{T}=Float64) where {T}
        a = Matrix{T}(undef, 2, n)
        b = Vector{Vector{T}}(undef, n)
        for i in 1:n
            a[:, i] ~ MvNormal(zeros(2), I)
            b[i] ~ MvNormal(zeros(3), I)
        end
        c ~ filldist(Dirichlet(3, 1.0), n)
        d = Vector{T}(undef, n)
        d[1:2] ~ MvNormal(zeros(2), I)
        d[3:n] ~ MvNormal(zeros(n - 2), I)
        total := sum(d)
    end
    """
    model = build(source, (; n=4), ["a", "b", "c", "d"])
    @test model.layout == P.Layout(0, 4, 2 + 3 + 2 + 1)
    point = randn(MersenneTwister(9), 32)
    natural = Dict(P.constrain(model, reshape(point, :, 1)))
    blocks = reshape(point, 8, 4)
    @test natural["a"][:, :, 1] ≈ blocks[1:2, :]
    @test natural["b"][:, :, 1] ≈ blocks[3:5, :]
    @test sum(natural["c"]; dims=1) ≈ ones(1, 4, 1)
    @test natural["d"][:, 1] ≈ blocks[8, :]
    @test only(natural["total"]) ≈ sum(blocks[8, :])
    names = P.variable_names(model)
    @test P.unconstrain(model, names, [natural[name] for name in names]) ≈ reshape(point, :, 1)
end

@testset "what cannot be fitted is refused in one message" begin
    define(body; arguments="y") = "@model function wrong($arguments)\n$body\nend"
    data = (; y=[1.0, 2.0, 3.0])
    said(body, locals; given=data, kwargs...) = message(() -> build(define(body; kwargs...), given, locals))
    good = "m ~ Normal(); e ~ filldist(Normal(m, 1), 3); y ~ MvNormal(e, I)"
    @test occursin("no variable \"eat\" to be local; its variables are m, e", said(good, ["eat"]))
    @test occursin("\"m\" is no array", said(good, ["m"]))
    @test occursin("twice", said(good, ["e", "e"]))
    @test occursin("discrete", said("k ~ filldist(Poisson(2), 3); y ~ MvNormal(k .+ 0.0, I)", ["k"]))
    @test occursin("ties them", said("o ~ Turing.Bijectors.ordered(MvNormal(zeros(3), I)); y ~ MvNormal(o, I)", ["o"]))
    @test occursin("does not treat them alike", said("p ~ Dirichlet(3, 1.0); y ~ MvNormal(p, I)", ["p"]))
    @test occursin("length 2 for \"a\", length 3 for \"e\"", said("a ~ filldist(Normal(), 2); " * good, ["a", "e"]))
    @test occursin("not Julia code", said("m ~ Normal((", String[]))
    @test occursin("no `@model function`", message(() -> build("f(y) = y", data, String[])))
    @test endswith(said("m ~ Nrmal()", String[]), "fails when it is run: UndefVarError: `Nrmal` not defined")
    @test occursin("does not compile: UndefVarError: `undefined_thing`", message(() -> build("x = undefined_thing\n" * define(good), data, String[])))
    @test occursin("my own words (line 2", said("error(\"my own words\")", String[]))
    @test occursin("data has no \"y\"; the model has no argument \"z\"", said(good, String[]; given=(; z=1)))
    @test occursin("no variables", said("y ~ MvNormal(zeros(3), I)", String[]))
    @test occursin("log density changes from run to run", said("m ~ Normal(rand(), 1); y ~ MvNormal(fill(m, 3), I)", String[]))
    @test occursin("changes its data: \"y\"", said("y[1] += 1; m ~ Normal(); y ~ MvNormal(fill(m, 3), I)", String[]; given=deepcopy(data)))
    @test occursin("in every run: b vary", said("m ~ Normal(); m > 0 && (b ~ Normal()); y ~ MvNormal(fill(m, 3), I)", String[]))
    @test endswith(said(good, String[]; given=(; y=[1]), arguments="y::Vector{Float64}"), "wrong(::Vector{Int64})")
    @test occursin("not finite", said("m ~ Normal(); @addlogprob! -Inf", String[]))
end

@testset "global coordinates are named as the model names them" begin
    source = """
    @model function names(::Type{T}=Float64) where {T}
        B ~ filldist(Normal(), 2, 2)
        a = Vector{T}(undef, 2)
        a[2] ~ Normal()
        a[1] ~ Exponential(1)
        r = Matrix{T}(undef, 2, 2)
        r[1, :] ~ MvNormal(zeros(2), I)
        r[2, :] ~ MvNormal(zeros(2), I)
        L ~ LKJCholesky(2, 1.0)
    end
    """
    model = build(source, (;), String[])
    @test Set(P.global_labels(model)) == Set([
        "B[1,1]", "B[2,1]", "B[1,2]", "B[2,2]", "a[2]", "linked a[1]", "r[1, :][1]", "r[1, :][2]", "r[2, :][1]",
        "r[2, :][2]", "linked L (1)",
    ])
    point = randn(MersenneTwister(10), 11)
    natural = Dict(P.constrain(model, reshape(point, :, 1)))
    at(label) = point[findfirst(==(label), P.global_labels(model))]
    @test [at("a[2]"), exp(at("linked a[1]"))] ≈ natural["a"][[2, 1], 1]
    @test at("B[2,1]") ≈ natural["B"][2, 1, 1]
    @test at("r[1, :][2]") ≈ natural["r"][1, 2, 1]
end

@testset "a wrong or absent gradient is refused" begin
    jump = "@model function jump(y)\n    m ~ Normal()\n    @addlogprob! m * Turing.ForwardDiff.value(m)\n    y ~ Normal(m, 1)\nend"
    @test occursin("wrong gradient", message(() -> build(jump, (; y=1.0), String[])))
    narrow = "@model function narrow(y)\n    m ~ Normal()\n    x = Vector{Float64}(undef, 1)\n    x[1] = m\n    y ~ Normal(x[1], 1)\nend"
    @test occursin("cannot differentiate", message(() -> build(narrow, (; y=1.0), String[])))
    @test P.ad_of(build(narrow, (; y=1.0), String[], "")) == "mooncake"  # which needs no number type of its own
    @test occursin("unknown ad \"enzyme\"", message(() -> build(CENTRED, SCHOOLS, ["theta"], "enzyme")))
end

@testset "points where the model throws have no density, and other errors come through" begin
    source = "@model function far(y)\n    m ~ Normal()\n    y ~ Normal(m, m > 5 ? -1.0 : 1.0)\nend"
    model = build(source, (; y=1.0), String[])
    points = [0.0 10.0]
    values, slopes = P.log_density(model, points), similar(points)
    P.log_density_gradient!(slopes, model, points, nothing)
    @test isfinite.(values) == isfinite.(vec(slopes)) == [true, false]
end

@testset "the last model of the source, or the one named; keywords and defaults" begin
    source = """
    using Turing, Distributions, LinearAlgebra
    using Random: Random, shuffle
    import Statistics as S
    helper(x) = 2x
    Turing.@model first_one(y) = (m ~ Normal(); y ~ Normal(m, 1))
    "Documented."
    @model function second_one(y, scale=helper(3.0); shift=1.0)
        m ~ Normal(shift, scale)
        y ~ Normal(m, 1)
    end
    """
    density(program) = only(P.log_density(build(program, String[], ""), zeros(1, 1)))
    @test density(P.turing_program(source, (; y=0.5))) ≈ normal(0.0, 1.0, 6.0) + normal(0.5, 0, 1)
    @test density(P.turing_program(source, (; y=0.5, shift=2.0, scale=3.0))) ≈ normal(0.0, 2.0, 3.0) + normal(0.5, 0, 1)
    @test density(P.turing_program(source, (; y=0.5), "first_one")) ≈ normal(0.0, 0, 1) + normal(0.5, 0, 1)
    @test occursin("it has first_one, second_one", message(() -> P.turing_program(source, (; y=0.5), "third_one")))
end

# ---- NUTS --------------------------------------------------------------------------------------------------------
function run_nuts(model, seed; seconds=1.0, n_draws=400)
    run = P.start_nuts(model, seed, 2, n_draws, 300, 0.8)
    while P.advance_nuts!(run, seconds)[2] < n_draws
    end
    return P.nuts_draws(run)
end

@testset "NUTS finds a normal posterior, the same again from one seed however often it is looked at" begin
    source = "@model function line(y)\n    m ~ Normal(0, 2)\n    e ~ filldist(Normal(m, 1), 3)\n    y ~ MvNormal(e, I)\nend"
    y = [1.0, 2.0, 4.5]
    model = build(source, (; y), ["e"])
    points, divergent, depth, step_sizes = run_nuts(model, "3"; n_draws=3000)
    @test size(points) == (4, 3000, 2)
    # y_i ~ N(m, 2) and m ~ N(0, 4): the posterior of m is normal
    precision = 1 / 4 + 3 / 2
    @test sum(points[1, :, :]) / 6000 ≈ (sum(y) / 2) / precision atol = 0.06
    r_hat, ess, _ = P.diagnostics(permutedims(points, (2, 3, 1)))
    @test all(<(1.02), r_hat)
    @test all(>(500), ess)
    @test sum(divergent) == 0
    @test all(>(0), step_sizes)
    short = first(run_nuts(model, "3"; n_draws=50))
    @test short == first(run_nuts(model, "3"; n_draws=50, seconds=1e-9))
    @test short != first(run_nuts(model, "4"; n_draws=50))
end

@testset "an unfinished NUTS run keeps as many draws of each chain" begin
    model = build("@model function one(y)\n    m ~ Normal()\n    y ~ Normal(m, 1)\nend", (; y=1.0), String[])
    run = P.start_nuts(model, "1", 3, 10, 5, 0.8)
    for _ in 1:(3 + 3 * 5 + 7)  # three starts, the warm-up, two draws of each chain and one of the first
        P.advance_nuts!(run, 0.0)
    end
    @test P.advance_nuts!(run, 0.0)[1:2] == (5, 2)
    @test size(first(P.nuts_draws(run))) == (1, 2, 3)
end
