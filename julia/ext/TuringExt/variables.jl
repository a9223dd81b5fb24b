# Which variables a Turing model has, where they stand in DynamicPPL's flat vector, and how they line up as
# `[z, y_1, ..., y_N]`.

"""
A random variable of the model as a whole, such as `eta` where the model says `eta[i] ~ ...`.

`places` are its coordinates in DynamicPPL's linked vector; `slices` says to which index along its last axis each
belongs (empty for a global). `prototype` is a value of it as the model sees it. `labels` name the coordinates, in the
order of `places`.
"""
struct Variable
    name::String
    varname::VarName
    prototype::Any
    places::Vector{Int}
    slices::Vector{Int}
    labels::Vector{String}
end

"""Values of all variables by name, as the model sees them, at a linked vector; with `derived`, what `:=` sets too."""
function raw_values(ldf::LogDensityFunction, x::AbstractVector; derived::Bool=false)
    info = DynamicPPL.OnlyAccsVarInfo(DynamicPPL.RawValueAccumulator(derived))
    _, info = DynamicPPL.init!!(ldf.model, info, DynamicPPL.InitFromVector(x, ldf), DynamicPPL.UnlinkAll())
    return DynamicPPL.densify!!(DynamicPPL.get_raw_values(info))
end

"""
    find_variables(ldf, x, locals) -> Vector{Variable}

The globals in DynamicPPL's order, then the locals in the order of `locals`. Refuses what cannot be laid out.
"""
function find_variables(ldf::LogDensityFunction, x::Vector{Float64}, locals::Vector{String})
    values = collect(pairs(raw_values(ldf, x)))
    names = [string(varname) for (varname, _) in values]
    allunique(locals) || throw(ModelError("local names a variable twice: $(join(locals, ", "))."))
    for name in locals
        name in names || throw(ModelError(
            "the model has no variable $(repr(name)) to be local; its variables are $(join(names, ", "))."
        ))
    end
    statements = collect(pairs(DynamicPPL.get_all_ranges_and_transforms(ldf)))
    variables = map(zip(names, values)) do (name, (varname, value))
        own = [(entry, found.range) for (entry, found) in statements if subsumes(varname, entry)]
        places = reduce(vcat, [collect(range) for (_, range) in own]; init=Int[])
        labels = reduce(vcat, [labels_of(varname, value, entry, x[range]) for (entry, range) in own]; init=String[])
        name in locals || return Variable(name, varname, value, places, Int[], labels)
        refuse_without_slices(name, value)
        slices = reduce(vcat, [slices_of(name, value, varname, entry, length(range)) for (entry, range) in own])
        variable = Variable(name, varname, value, places, slices, labels)
        length(own) == 1 && refuse_coupled_slices(ldf, x, variable)
        return variable
    end
    chosen = [variables[findfirst(==(name), names)] for name in locals]
    refuse_misaligned(chosen)
    return [[variable for variable in variables if !(variable.name in locals)]; chosen]
end

"""
    layout_and_order(variables) -> (Layout, order)

The flat vector `[z, y_1, ..., y_N]` and where each of its coordinates stands in DynamicPPL's vector.
"""
function layout_and_order(variables::Vector{Variable})
    globals = reduce(vcat, [v.places for v in variables if is_global(v)]; init=Int[])
    locals = [v for v in variables if !is_global(v)]
    n = isempty(locals) ? 0 : number_of_slices(first(locals))
    blocks = [Int[] for _ in 1:n]
    for variable in locals, (place, slice) in zip(variable.places, variable.slices)
        push!(blocks[slice], place)
    end
    layout = PyTuringVI.Layout(length(globals), n, n == 0 ? 0 : length(first(blocks)))
    return layout, reduce(vcat, blocks; init=globals)
end

is_global(variable::Variable) = isempty(variable.slices)
number_of_slices(variable::Variable) = size(variable.prototype)[end]

"""Names for the coordinates `linked` of one `~` statement: of elements where there is one coordinate for each."""
function labels_of(whole::VarName, value, entry::VarName, linked::AbstractVector)
    elements = entry == whole ? value : part_of(value, last_optic(getoptic(entry)))
    array = natural(elements)
    if isnothing(array) || length(array) != length(linked)
        return ["linked $entry ($k)" for k in eachindex(linked)]
    end
    names = [isempty(Tuple(place)) ? string(entry) : "$entry[$(join(Tuple(place), ","))]" for place in CartesianIndices(array)]
    return [same ? label : "linked $label" for (label, same) in zip(vec(names), vec(array) .== linked)]
end

part_of(value::AbstractArray, optic::AbstractPPL.Index) = isempty(optic.kw) ? value[optic.ix...] : nothing
part_of(_, _) = nothing

"""To which slice each of the `n_coordinates` of one `~` statement belongs."""
function slices_of(name::String, value::AbstractArray, whole::VarName, entry::VarName, n_coordinates::Int)
    covered = entry == whole ? collect(1:size(value)[end]) : last_indices(name, value, last_optic(getoptic(entry)))
    each, rest = divrem(n_coordinates, length(covered))
    rest == 0 || throw(ModelError(
        "the local variable $(repr(name)) has $n_coordinates unconstrained coordinates for $(length(covered)) slices " *
        "along its last axis: its distribution does not treat them alike. Make it global, or write one ~ for each slice."
    ))
    return repeat(covered; inner=each)
end

last_optic(optic::AbstractPPL.Iden) = optic
last_optic(optic) = optic.child isa AbstractPPL.Iden ? optic : last_optic(optic.child)

"""The indices along the last axis that an index like `[3]`, `[:, 3]` or `[2:4]` covers."""
function last_indices(name::String, value::AbstractArray, optic)
    optic isa AbstractPPL.Index && isempty(optic.kw) || throw(ModelError(
        "the local variable $(repr(name)) is made of parts that no index numbers; make it an array."
    ))
    places = CartesianIndices(value)[optic.ix...]
    return unique!([Tuple(place)[end] for place in (places isa CartesianIndex ? [places] : vec(places))])
end

"""
The maps from the linked coordinates of the globals to their values, in the order of `globals`, if these are the same at
all of `points` (d x n): then the globals need no run of the model. Nothing where one depends on other variables, or is
made of several `~` statements.
"""
function fixed_transforms(ldf::LogDensityFunction, globals::Vector{Variable}, points::AbstractMatrix)
    found = map(eachcol(points)) do point
        info = DynamicPPL.OnlyAccsVarInfo(DynamicPPL.FixedTransformAccumulator())
        strategy = DynamicPPL.InitFromVector(Vector{Float64}(point), ldf)
        _, info = DynamicPPL.init!!(ldf.model, info, strategy, ldf.transform_strategy)
        Dict(pairs(DynamicPPL.get_fixed_transforms(info)))
    end
    transforms = [get(first(found), variable.varname, nothing) for variable in globals]
    fixed = all(zip(globals, transforms)) do (variable, transform)
        !isnothing(transform) && all(isequal(other[variable.varname], transform) for other in found)
    end
    return fixed ? Any[transform.transform for transform in transforms] : nothing
end

# ---- refusals ----------------------------------------------------------------------------------------------------
"""Refuse discrete variables and values that are no arrays, by a draw from the prior: the model cannot even start there."""
function refuse_unusable(model::DynamicPPL.Model, rng::AbstractRNG)
    info = DynamicPPL.OnlyAccsVarInfo(DynamicPPL.RawValueAccumulator(false))
    _, info = DynamicPPL.init!!(rng, model, info, DynamicPPL.InitFromPrior(), DynamicPPL.UnlinkAll())
    for (varname, value) in pairs(DynamicPPL.densify!!(DynamicPPL.get_raw_values(info)))
        isnothing(natural(value)) && throw(ModelError(
            "the variable \"$varname\" is a $(nameof(typeof(value))); only numbers, arrays and Cholesky factors can be fitted."
        ))
        innermost_eltype(value) <: Integer && throw(ModelError(
            "the variable \"$varname\" is discrete; all variables of a fit must be continuous. Sum it out of the model."
        ))
    end
    return nothing
end

"""The variables and their numbers of coordinates must be the same in every run: `N_RUNS` more tell."""
function refuse_other_variables(model::DynamicPPL.Model, values, rng::AbstractRNG)
    expected = coordinate_counts(values)
    for _ in 1:N_RUNS
        found = try
            coordinate_counts(DynamicPPL.get_vector_values(random_run(model, rng, 4.0)))
        catch error
            error isa InterruptException && rethrow()
            continue  # the model need not run this far out
        end
        found == expected || throw(varying_variables(expected, found))
    end
    return nothing
end

const N_RUNS = 8

coordinate_counts(values) =
    Dict(string(name) => length(DynamicPPL.get_internal_value(value)) for (name, value) in pairs(values))

function varying_variables(expected, found)
    odd = sort!([name for name in union(keys(expected), keys(found)) if get(expected, name, 0) != get(found, name, 0)])
    return ModelError(
        "the model's variables are not the same in every run: $(join(odd, ", ", " and ")) vary. A fit needs one fixed set of " *
        "variables of fixed sizes: let no ~ statement depend on a variable or on chance."
    )
end

"""The same where a run that was laid out already comes upon a variable without a place."""
varying_variables() = ModelError(
    "the model's variables are not the same in every run: at this point it has one more than where it was laid out. A fit needs " *
    "one fixed set of variables: let no ~ statement depend on a variable or on chance."
)

is_unknown_variable(error) = error isa KeyError && error.key isa VarName

"""The log density must be a function of the variables: the same again, bit for bit, with another point in between or not."""
function refuse_other_values(model::DynamicPPL.Model, values, points::AbstractMatrix)
    ldf = LogDensityFunction(model, DynamicPPL.getlogjoint_internal, values)
    first_value = LogDensityProblems.logdensity(ldf, points[:, 1])
    for k in (1, 2, 1)
        value = LogDensityProblems.logdensity(ldf, points[:, k])
        k == 1 && !isequal(value, first_value) && throw(ModelError(
            "the model's log density changes from run to run: at one and the same point it was $first_value, then $value. Take " *
            "rand() and whatever else changes between two runs out of the model."
        ))
    end
    return nothing
end

innermost_eltype(value::AbstractArray{<:AbstractArray}) = isempty(value) ? Float64 : innermost_eltype(first(value))
innermost_eltype(value) = eltype(value)

refuse_without_slices(name::String, value::AbstractArray) = isempty(value) && throw(ModelError(
    "the local variable $(repr(name)) is empty, of size $(size(value)): it has no local blocks. Give the model data that are " *
    "not empty, or leave it out of local."
))
refuse_without_slices(name::String, value) = throw(ModelError(
    "the local variable $(repr(name)) is no array: a local variable has one slice for each of the N local blocks along " *
    "its last axis. Leave it out of local to make it global."
))

"""All locals must have one length N along their last axis, and each slice of one as many coordinates as the others."""
function refuse_misaligned(locals::Vector{Variable})
    allequal(number_of_slices(variable) for variable in locals) || throw(ModelError(
        "the local variables do not line up: their last axes have " *
        join(("length $(number_of_slices(v)) for $(repr(v.name))" for v in locals), ", ") * ". All must have one length N."
    ))
    for variable in locals
        counts = zeros(Int, number_of_slices(variable))
        foreach(slice -> counts[slice] += 1, variable.slices)
        odd = findfirst(!=(first(counts)), counts)
        isnothing(odd) || throw(ModelError(
            "slice $odd of the local variable $(repr(variable.name)) has $(counts[odd]) unconstrained coordinates and " *
            "slice 1 has $(first(counts)); all must have as many."
        ))
    end
    return nothing
end

"""
One `~` for many slices: moving the coordinates of some slices must move the values of these and no others, or a slice's
coordinates are not its own (a simplex over N, an ordered vector, ...).
"""
function refuse_coupled_slices(ldf::LogDensityFunction, x::Vector{Float64}, variable::Variable)
    moved = copy(x)
    moved[variable.places[isodd.(variable.slices)]] .+= 1e-3
    changed = natural(raw_values(ldf, moved)[variable.varname]) .!= natural(variable.prototype)
    moves = vec(any(changed; dims=Tuple(1:(ndims(changed) - 1))))
    moves == isodd.(1:number_of_slices(variable)) || throw(ModelError(
        "the slices of the local variable $(repr(variable.name)) have no coordinates of their own: its distribution ties " *
        "them together. Make it global, or write one ~ for each slice."
    ))
    return nothing
end
