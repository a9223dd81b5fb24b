# A Turing model as a model of the engine: one column after the other through DynamicPPL.

"""
    TuringModel(model, locals; ad="", gradient=true)

Any DynamicPPL model, its variables laid out as `[z, y_1, ..., y_N]`. `ldf` holds one AD preparation and the model one
buffer, so that it serves one thread at a time. `reference` is a linked vector at which the density is finite, `ad` the
name of the backend ("" for no gradient); `transforms` as in `fixed_transforms`.
"""
struct TuringModel{F<:LogDensityFunction} <: PyTuringVI.Model
    layout::PyTuringVI.Layout
    ldf::F
    ad::String
    variables::Vector{Variable}
    transforms::Union{Nothing,Vector{Any}}
    order::Vector{Int}
    reference::Vector{Float64}
    buffer::Vector{Float64}
end

const START_SEED = 20240611

"""A `TuringModel` in the making: laid out, but for its gradient."""
struct Build
    plain::TuringModel
    search::Search
end

function Build(model::DynamicPPL.Model, locals::Vector{String}, ad::AbstractString)
    values, starts = start(model, Xoshiro(START_SEED))
    plain = LogDensityFunction(model, DynamicPPL.getlogjoint_internal, values)
    variables = find_variables(plain, starts[:, 1], locals)
    layout, order = layout_and_order(variables)
    transforms = fixed_transforms(plain, filter(is_global, variables), starts)
    reference = starts[:, 1]
    laid_out = TuringModel(layout, plain, "", variables, transforms, order, reference, similar(reference))
    names = isempty(ad) ? default_backends(length(order)) : [String(ad)]
    return Build(laid_out, Search(model, values, starts, plain, names))
end

function finished(build::Build)
    name, ldf = chosen(build.search)
    (; layout, variables, transforms, order, reference, buffer) = build.plain
    return TuringModel(layout, ldf, name, variables, transforms, order, reference, buffer)
end

function TuringModel(model::DynamicPPL.Model, locals::Vector{String}; ad::AbstractString="", gradient::Bool=true)
    build = Build(model, locals, ad)
    gradient || return build.plain
    while advance!(build.search)
    end
    return finished(build)
end

"""
    start(model, rng) -> (values, points)

Vectorized values of all variables for a `LogDensityFunction`, and three linked points with a finite density. Points are
drawn as Stan starts its chains, uniformly on (-2, 2), and nearer to 0 where that fails.
"""
function start(model::DynamicPPL.Model, rng::AbstractRNG)
    points, found, last_error = Vector{Float64}[], nothing, nothing
    for attempt in 1:60
        width = 2.0 / 4.0^((attempt - 1) ÷ 20)
        info = try
            random_run(model, rng, width)
        catch error
            error isa OUTSIDE || rethrow()
            last_error = error
            continue
        end
        isfinite(DynamicPPL.getlogjoint_internal(info)) || continue
        before, found = found, DynamicPPL.get_vector_values(info)
        isnothing(before) || coordinate_counts(before) == coordinate_counts(found) ||
            throw(varying_variables(coordinate_counts(before), coordinate_counts(found)))
        push!(points, reduce(vcat, [collect(Float64, DynamicPPL.get_internal_value(v)) for v in values(found)]; init=Float64[]))
        length(points) == 3 && return found, reduce(hcat, points)
    end
    isnothing(last_error) || throw(last_error)
    throw(ModelError("the log density was not finite at 60 points drawn around 0 in unconstrained space."))
end

"""What a run of the model gives at a point drawn uniformly from (-width, width) in unconstrained space."""
function random_run(model::DynamicPPL.Model, rng::AbstractRNG, width::Float64)
    info = DynamicPPL.OnlyAccsVarInfo((
        DynamicPPL.VectorValueAccumulator(), DynamicPPL.LogPriorAccumulator(),
        DynamicPPL.LogLikelihoodAccumulator(), DynamicPPL.LogJacobianAccumulator(),
    ))
    strategy = DynamicPPL.InitFromUniform(-width, width)
    return last(DynamicPPL.init!!(rng, model, info, strategy, DynamicPPL.LinkAll()))
end

# ---- the interface of the engine ---------------------------------------------------------------------------------
"""What a model may throw at points that lie too far out for it: the density there is not a number."""
const OUTSIDE = Union{DomainError,PosDefException,SingularException,OverflowError,InexactError}

"""Write column m of `points` into the buffer in DynamicPPL's order."""
function linked_vector!(model::TuringModel, points::AbstractMatrix, m::Int)
    @inbounds for (k, place) in enumerate(model.order)
        model.buffer[place] = points[k, m]
    end
    return model.buffer
end

function check_rows(model::TuringModel, points::AbstractMatrix)
    d = PyTuringVI.dim(model.layout)
    size(points, 1) == d || throw(DimensionMismatch("points must have $d rows, got $(size(points, 1))"))
    return nothing
end

function PyTuringVI.log_density!(values::AbstractVector, model::TuringModel, points::AbstractMatrix, _)
    check_rows(model, points)
    for m in axes(points, 2)
        x = linked_vector!(model, points, m)
        values[m] = try
            LogDensityProblems.logdensity(model.ldf, x)
        catch error
            is_unknown_variable(error) && throw(varying_variables())
            error isa OUTSIDE || rethrow()
            NaN
        end
    end
    return values
end

PyTuringVI.log_density(model::TuringModel, points::AbstractMatrix) =
    PyTuringVI.log_density!(Vector{Float64}(undef, size(points, 2)), model, points, nothing)

function PyTuringVI.log_density_gradient!(slopes::AbstractMatrix, model::TuringModel, points::AbstractMatrix, _)
    values_and_slopes!(nothing, slopes, model, points)
    return slopes
end

function PyTuringVI.log_density_and_gradient!(
    values::AbstractVector, slopes::AbstractMatrix, model::TuringModel, points::AbstractMatrix, _
)
    return values_and_slopes!(values, slopes, model, points)
end

"""Log densities, unless `values` is nothing, and gradients of all columns."""
function values_and_slopes!(values, slopes::AbstractMatrix, model::TuringModel, points::AbstractMatrix)
    check_rows(model, points)
    for m in axes(points, 2)
        x = linked_vector!(model, points, m)
        try
            value, slope = LogDensityProblems.logdensity_and_gradient(model.ldf, x)
            isnothing(values) || (values[m] = value)
            @inbounds for (k, place) in enumerate(model.order)
                slopes[k, m] = slope[place]
            end
        catch error
            is_unknown_variable(error) && throw(varying_variables())
            error isa OUTSIDE || rethrow()
            isnothing(values) || (values[m] = NaN)
            fill!(view(slopes, :, m), NaN)
        end
    end
    return nothing
end

function PyTuringVI.log_density_and_gradient_at!(values, slopes, model::TuringModel, points)
    values_and_slopes!(PyTuringVI.wrap(values), PyTuringVI.wrap(slopes), model, PyTuringVI.wrap(points))
    return nothing
end

function ChainRulesCore.rrule(::typeof(PyTuringVI.log_density), model::TuringModel, points::AbstractMatrix)
    values, slopes = Vector{Float64}(undef, size(points, 2)), similar(points)
    values_and_slopes!(values, slopes, model, points)
    return values, change -> (NoTangent(), NoTangent(), slopes .* reshape(unthunk(change), 1, :))
end

# ---- the bundled models' Turing form -----------------------------------------------------------------------------
function PyTuringVI.turing_form(model::PyTuringVI.Model; ad::AbstractString="", gradient::Bool=true)
    form = TuringModel(PyTuringVI.turing_model(model), local_names(model); ad, gradient)
    invpermute!(form.order, coordinates(model))
    return form
end

PyTuringVI.turing_log_density(model::PyTuringVI.Model, points::AbstractMatrix) =
    PyTuringVI.log_density(PyTuringVI.turing_form(model; gradient=false), points)
