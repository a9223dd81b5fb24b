# What the extension TuringExt adds once Turing is loaded. Nothing here has a method before that.

"""What is wrong with a user's model, in words for the user."""
struct ModelError <: Exception
    message::String
end

Base.showerror(io::IO, error::ModelError) = print(io, "ModelError: ", error.message)

"""
    turing_model(model) -> DynamicPPL.Model

A bundled model as the Turing `@model` that defines it, on the same data and with its own priors and parametrization.
"""
function turing_model end

"""
    turing_form(model; ad="", gradient=true) -> Model

A bundled model run through its Turing `@model`, as a user's own Turing model would be: the same layout and the same log
density, but everything goes through DynamicPPL.
"""
function turing_form end

"""
    turing_log_density(model, points)

Log density of each column of `points` (d x M, unconstrained) by the model's Turing form, log-Jacobians included.
"""
function turing_log_density end

"""
    turing_program(source, data, function_name="") -> program

Compile Julia text with at least one `@model function` and call the last one, or the one named, with the entries of the
NamedTuple `data` that its arguments name. Without data, a model that the source itself makes is taken as it is, such as
`f(3) | (; y)`. Throws a `ModelError` that says in one message what is wrong if the source
does not compile, the data do not match the arguments, the model throws, changes its data or has other variables from run
to run, or its log density is no function of its variables.
"""
function turing_program end

"""
    start_build(program, locals, ad="") -> build

Lay a program's variables out as `[z, y_1, ..., y_N]`: `locals` names the variables whose last axis runs over the N
blocks, everything else is global. `ad` is one of `ad_names()`, or "" for the fastest of those that compile soon enough to
be worth it. Throws a `ModelError` if a local variable is unknown or does not line up.
"""
function start_build end

"""
    advance_build!(build) -> Bool

One more step towards a right gradient, with the compilation that it needs; false if all is done. The caller may look at
Ctrl-C between two steps.
"""
function advance_build! end

"""
    built_model(build) -> Model

The model with its gradient. Throws a `ModelError` if none is to be had, or right.
"""
function built_model end

"""Names of a program's or a model's variables, in the order of the model's flat vector or of Turing's."""
function variable_names end

"""A name for each global coordinate of the flat vector; "linked x" where it is a transformed x."""
function global_labels end

"""A point (d) with a finite log density."""
function reference_point end

"""
    constrain(model, points) -> Vector{Pair{String,Array}}

Variables in their natural space, and what the model sets with `:=`: the axes of the variable, then one of length M.
"""
function constrain end

"""
    constrain_globals(model, z) -> Vector{Pair{String,Array}}

The global variables alone, from `z` (d_z x M); a global whose map depends on a local sees the reference point's.
"""
function constrain_globals end

"""
    unconstrain(model, names, arrays) -> d x M matrix

The inverse of `constrain`, from the variables alone.
"""
function unconstrain end

"""Write log densities (M) and their gradients (d x M) at `points`, one pass for both."""
function log_density_and_gradient_at! end

"""Names of the automatic differentiation backends."""
function ad_names end

"""The automatic differentiation backend that a model uses."""
function ad_of end
