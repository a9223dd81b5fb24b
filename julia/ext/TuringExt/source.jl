# A user's Turing model: Julia text, compiled in a module of its own and called with the user's data.

const SOURCE_NAME = "the model's source"

"""A model called with its data."""
struct Program
    model::DynamicPPL.Model
    name::String
    line::Int  # of the source, where the model begins
end

function PyTuringVI.turing_program(source::AbstractString, data::NamedTuple, function_name::AbstractString="")
    space = user_module()
    statements = parse_source(source)
    definitions = [definition for definition in model_definition.(statements) if !isnothing(definition)]
    definition = chosen_definition(definitions, function_name)
    called = nothing  # the last model that the source itself makes
    for statement in statements
        value = try
            Core.eval(space, statement)
        catch error
            error isa InterruptException && rethrow()
            innermost(error) isa ModelError && throw(innermost(error))
            throw(ModelError("the Turing model's source does not compile: $(summarized(error, catch_backtrace()))"))
        end
        value isa DynamicPPL.Model && (called = value)
    end
    program = if isempty(data) && !isnothing(called) && function_name in ("", string(nameof(called.f)))
        own = findlast(d -> d.name == string(nameof(called.f)), definitions)
        Program(called, string(nameof(called.f)), isnothing(own) ? 0 : definitions[own].line)
    else
        refuse_ignored(called, definition)
        Program(Base.invokelatest(call_with_data, space, definition, data), definition.name, definition.line)
    end
    Base.invokelatest(probe, program, data)
    return program
end

"""Refuse values that the source gives a model which does not run: its variables would be fitted."""
function refuse_ignored(called, definition)
    called isa DynamicPPL.Model && !(called.context isa DynamicPPL.DefaultContext) && throw(ModelError(
        "the source conditions or fixes a model that does not run, since its function is called anew with data. Give the observed " *
        "values in data, each under the name of an argument of $(definition.name), or let the source have all values and give no data."
    ))
    return nothing
end

"""
Run the model a few times, so that one that throws, or whose log density is no function of its variables, is refused
before anything is built on it.
"""
function probe(program::Program, data::NamedTuple)
    as_given = deepcopy(data)
    running(program) do
        try
            refuse_unusable(program.model, Xoshiro(START_SEED))
        catch error
            error isa OUTSIDE || rethrow()  # a draw from a wide prior may lie where the model cannot be run
        end
        values, points = start(program.model, Xoshiro(START_SEED))
        isempty(points) &&
            throw(ModelError("the Turing model $(repr(program.name)) has no variables: every ~ statement is about data."))
        refuse_other_variables(program.model, values, Xoshiro(START_SEED + 1))
        changed = findfirst(name -> !isequal(data[name], as_given[name]), keys(data))
        isnothing(changed) || throw(ModelError(
            "the Turing model $(repr(program.name)) changes its data: $(repr(string(keys(data)[changed]))) is not what it " *
            "was before the model was run. Let the model work on a copy."
        ))
        refuse_other_values(program.model, values, points)
    end
    return nothing
end

"""Run `f`; what the model throws becomes a `ModelError` with its message and the line of the source."""
function running(f, program::Program)
    try
        return f()
    catch error
        error isa Union{InterruptException,ModelError} && rethrow()
        is_unknown_variable(error) && throw(varying_variables())
        words = summarized(error, catch_backtrace(), program.line)
        throw(ModelError("the Turing model $(repr(program.name)) fails when it is run: $words"))
    end
end

function PyTuringVI.start_build(program::Program, locals, ad::AbstractString="")
    return Base.invokelatest(Build, program.model, String[name for name in locals], ad)
end

PyTuringVI.advance_build!(build::Build) = advance!(build.search)
PyTuringVI.built_model(build::Build) = Base.invokelatest(finished, build)

function PyTuringVI.variable_names(program::Program)
    values, points = start(program.model, Xoshiro(START_SEED))
    ldf = LogDensityFunction(program.model, DynamicPPL.getlogjoint_internal, values)
    return [string(varname) for (varname, _) in pairs(raw_values(ldf, points[:, 1]))]
end

# ---- the text ----------------------------------------------------------------------------------------------------
const AT_HAND = (Turing, Turing.Distributions, Turing.Bijectors, DynamicPPL, LinearAlgebra, Random, Statistics)

const NO_INCLUDE = ModelError(
    "the Turing model's source cannot include files. Put the file's text before the model, as Path(file).read_text() gives it in Python."
)
const NO_SUBMODEL = ModelError(
    "Turing has @submodel no more. Write `x ~ to_submodel(inner(...))`, which names the inner model's variables x.a, x.b, ..."
)

"""A fresh module in which everything that a Turing script usually loads is at hand."""
function user_module()
    space = Module(:TuringModelSource)
    for package in AT_HAND
        Core.eval(space, :(const $(nameof(package)) = $package))
    end
    Core.eval(space, :(using .Turing, .LinearAlgebra, .Random, .Statistics))
    Core.eval(space, :(include(_...) = throw($NO_INCLUDE)))
    Core.eval(space, :(macro submodel(_...) throw($NO_SUBMODEL) end))
    return space
end

function parse_source(source::AbstractString)
    parsed = Meta.parseall(source; filename=SOURCE_NAME)
    for statement in parsed.args
        statement isa Expr && statement.head in (:error, :incomplete) || continue
        throw(ModelError("the Turing model's source is not Julia code: $(summarized(first(statement.args)))"))
    end
    # each statement keeps the line it came from, so that errors can name it
    line, statements = LineNumberNode(1, SOURCE_NAME), Expr[]
    for statement in parsed.args
        statement isa LineNumberNode ? (line = statement) : push!(statements, Expr(:toplevel, line, use_at_hand(statement)))
    end
    return statements
end

"""`using Turing, X` as `using .Turing, X`: what is at hand need not be in the Julia project under its name."""
function use_at_hand(statement)
    statement isa Expr || return statement
    if statement.head === :. && length(statement.args) == 1 && only(statement.args) in nameof.(AT_HAND)
        return Expr(:., :., only(statement.args))
    end
    statement.head === :(:) && return Expr(:(:), use_at_hand(first(statement.args)), statement.args[2:end]...)
    statement.head in (:using, :import, :as) || return statement
    return Expr(statement.head, use_at_hand.(statement.args)...)
end

"""Name, arguments and line of a statement that is a `@model function` with a name; nothing for any other."""
function model_definition(statement::Expr)
    line, call = statement.args
    call isa Expr && call.head === :macrocall || return nothing
    name, inner = macro_name(first(call.args)), last(call.args)
    name === Symbol("@doc") && inner isa Expr && return model_definition(Expr(:toplevel, line, inner))
    name === Symbol("@model") && inner isa Expr && inner.head in (:function, :(=)) || return nothing
    head = first(inner.args)
    while head isa Expr && head.head in (:where, :(::))
        head = first(head.args)
    end
    head isa Expr && head.head === :call && first(head.args) isa Symbol || return nothing
    return (; name=string(first(head.args)), arguments=arguments_of(head), line=line.line)
end

macro_name(name::Symbol) = name
macro_name(name::GlobalRef) = name.name
macro_name(name::Expr) = name.head === :. && last(name.args) isa QuoteNode ? last(name.args).value : nothing

"""Arguments of a call in a signature: name (nothing for `::Type{T}`), default expression, whether it is a keyword."""
function arguments_of(call::Expr)
    found = NamedTuple[]
    for argument in call.args[2:end]
        if argument isa Expr && argument.head === :parameters
            append!(found, [argument_of(keyword, true) for keyword in argument.args])
        else
            push!(found, argument_of(argument, false))
        end
    end
    return found
end

function argument_of(argument, keyword::Bool)
    has_default = argument isa Expr && argument.head === :kw
    target, default = has_default ? argument.args : (argument, nothing)
    if target isa Expr && target.head === :(::)
        target = length(target.args) == 2 ? first(target.args) : nothing
    end
    target isa Union{Symbol,Nothing} ||
        throw(ModelError("arguments of the Turing model must be plain names, got $(target)."))
    return (; name=target, default, has_default, keyword)
end

function chosen_definition(definitions, function_name::AbstractString)
    isempty(definitions) && throw(ModelError(
        "the Turing model's source has no `@model function` at its top level. It needs one, such as " *
        "`@model function my_model(x, y) ... end`, outside any `module`, `begin` or `let`."
    ))
    isempty(function_name) && return last(definitions)
    k = findlast(definition -> definition.name == function_name, definitions)
    isnothing(k) && throw(ModelError(
        "the source has no `@model function $function_name`; it has $(join((d.name for d in definitions), ", "))."
    ))
    return definitions[k]
end

# ---- the data ----------------------------------------------------------------------------------------------------
"""Call the model function with the data its arguments name."""
function call_with_data(space::Module, definition, data::NamedTuple)
    name, arguments = definition.name, definition.arguments
    for key in keys(data)
        is_name(string(key)) ||
            throw(ModelError("data has the name $(repr(string(key))), which no argument of a Julia function can have."))
    end
    named = [argument.name for argument in arguments if !isnothing(argument.name)]
    unknown = setdiff(keys(data), named)
    missing_names = [a.name for a in arguments if !a.has_default && !haskey(data, something(a.name, :_))]
    isempty(unknown) && isempty(missing_names) || throw(ModelError(
        "the data do not fit the arguments of the Turing model $name($(join(named, ", "))): " * join(
            filter(!isempty, [
                isempty(missing_names) ? "" : "data has no $(join(repr.(string.(missing_names)), ", "))",
                isempty(unknown) ? "" : "the model has no argument $(join(repr.(string.(unknown)), ", "))",
            ]), "; ") * "."
    ))
    # positional arguments up to the last one given; the model's own defaults serve after that
    positional = [argument for argument in arguments if !argument.keyword]
    n_given = something(findlast(a -> !isnothing(a.name) && haskey(data, a.name), positional), 0)
    given, known = Any[], Expr[]
    for argument in positional[1:n_given]
        has_data = !isnothing(argument.name) && haskey(data, argument.name)
        value = has_data ? data[argument.name] : Core.eval(space, Expr(:let, Expr(:block, known...), argument.default))
        isnothing(argument.name) || push!(known, :($(argument.name) = $(QuoteNode(value))))
        push!(given, value isa Type ? DynamicPPL.TypeWrap{value}() : value)
    end
    keywords = [a.name => data[a.name] for a in arguments if a.keyword && haskey(data, a.name)]
    model_function = getglobal(space, Symbol(name))
    try
        return Base.invokelatest(model_function, given...; keywords...)
    catch error
        error isa InterruptException && rethrow()
        throw(ModelError("the Turing model $(repr(name)) does not take these data: $(summarized(error))"))
    end
end

"""Whether Julia reads the text as a name, and as this one: not as a reserved word, and with nothing to normalize."""
is_name(text::AbstractString) = Base.isidentifier(text) && Meta.parse(text; raise=false) === Symbol(text)

# ---- an error in one message -------------------------------------------------------------------------------------
const LONGEST = 600

"""
An exception's first lines, with the line of the user's source it comes from where that is known. DynamicPPL gives the
whole model's line `but_not` to what fails in a `~` statement: no line is better than that one.
"""
function summarized(error, trace=nothing, but_not::Int=0)
    text = first(split(sprint(showerror, innermost(error); context=:limit => true), r"\nStacktrace:|\n+Closest candidates are:"))
    kept = join(Iterators.take(filter(!isempty ∘ strip, split(text, '\n')), 6), '\n')
    length(kept) > LONGEST && (kept = first(kept, LONGEST) * " ...")
    line = isnothing(trace) ? nothing : source_line(trace)
    return line in (nothing, but_not) ? kept : "$kept (line $line of the source)"
end

innermost(error) = error isa LoadError ? innermost(error.error) : error

function source_line(trace)
    for frame in stacktrace(trace)
        endswith(string(frame.file), SOURCE_NAME) && frame.line > 0 && return frame.line
    end
    return nothing
end
