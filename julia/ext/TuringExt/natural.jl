# The natural space under the model's own names: numbers, arrays and triangular factors as Float64 arrays.

"""A variable's value as a Float64 array, a number as one without axes; `nothing` for what is no array of real numbers."""
natural(value::Real) = fill(Float64(value))
natural(value::AbstractArray{<:Real}) = Array{Float64}(value)
natural(value::Cholesky) = natural(value.uplo == 'U' ? value.U : value.L)
natural(value::AbstractArray{<:AbstractArray}) = allequal(size.(value)) ? natural(stack(value)) : nothing
natural(value::AbstractArray) = isconcretetype(eltype(value)) || isempty(value) ? nothing : natural(identity.(value))
natural(_) = nothing

"""The inverse of `natural`, for a variable that the model sees like `prototype`."""
from_natural(::Real, value::AbstractArray) = only(value)
from_natural(::AbstractArray{<:Real}, value::AbstractArray) = value
from_natural(::AbstractArray{<:AbstractArray}, value::AbstractArray) = collect.(eachslice(value; dims=ndims(value)))
function from_natural(prototype::Cholesky, value::AbstractMatrix)
    return prototype.uplo == 'U' ? Cholesky(UpperTriangular(value)) : Cholesky(LowerTriangular(value))
end

function PyTuringVI.constrain(model::TuringModel, points::AbstractMatrix)
    check_rows(model, points)
    return collected(size(points, 2)) do m
        named_arrays(model, raw_values(model.ldf, linked_vector!(model, points, m); derived=true))
    end
end

function PyTuringVI.constrain_globals(model::TuringModel, z::AbstractMatrix)
    globals, layout = filter(is_global, model.variables), model.layout
    size(z, 1) == layout.n_global || throw(DimensionMismatch("z must have $(layout.n_global) rows, got $(size(z, 1))"))
    copyto!(model.buffer, model.reference)
    return collected(size(z, 2)) do m
        model.buffer[model.order[1:(layout.n_global)]] .= @view z[:, m]
        if isnothing(model.transforms)
            values = raw_values(model.ldf, model.buffer)
            [v.name => natural(values[v.varname]) for v in globals]
        else
            [v.name => natural(transform(model.buffer[v.places])) for (v, transform) in zip(globals, model.transforms)]
        end
    end
end

"""The named arrays that `f` gives for each of M points, each stacked along a new last axis."""
function collected(f, n_points::Int)
    results = Pair{String,Array{Float64}}[]
    for m in 1:n_points
        named = f(m)
        m == 1 && append!(results, [name => Array{Float64}(undef, size(value)..., n_points) for (name, value) in named])
        for ((_, into), (_, value)) in zip(results, named)
            selectdim(into, ndims(into), m) .= value
        end
    end
    return results
end

"""The model's variables in its order, then what `:=` sets and is an array of numbers."""
function named_arrays(model::TuringModel, all_values)
    own = Set(variable.varname for variable in model.variables)
    found = [variable.name => natural(all_values[variable.varname]) for variable in model.variables]
    for (varname, value) in pairs(all_values)
        array = varname in own ? nothing : natural(value)
        isnothing(array) || push!(found, string(varname) => array)
    end
    return found
end

function PyTuringVI.unconstrain(model::TuringModel, names, arrays)
    given = Dict{String,Array}(String(name) => array for (name, array) in zip(names, arrays))
    n_points = size(first(values(given)))[end]
    points = Matrix{Float64}(undef, PyTuringVI.dim(model.layout), n_points)
    for m in 1:n_points
        # copies: a distribution may have no method for a view
        natural_values = Dict(
            v.varname => from_natural(v.prototype, copy(selectdim(given[v.name], ndims(given[v.name]), m)))
            for v in model.variables
        )
        info = DynamicPPL.OnlyAccsVarInfo(DynamicPPL.VectorParamAccumulator(model.ldf))
        strategy = DynamicPPL.InitFromParams(natural_values, nothing)
        _, info = DynamicPPL.init!!(Xoshiro(0), model.ldf.model, info, strategy, model.ldf.transform_strategy)
        points[:, m] .= DynamicPPL.get_vector_params(info)[model.order]
    end
    return points
end

PyTuringVI.variable_names(model::TuringModel) = [variable.name for variable in model.variables]
PyTuringVI.ad_of(model::TuringModel) = model.ad
PyTuringVI.global_labels(model::TuringModel) = reduce(vcat, [v.labels for v in model.variables if is_global(v)]; init=String[])
PyTuringVI.reference_point(model::TuringModel) = model.reference[model.order]
