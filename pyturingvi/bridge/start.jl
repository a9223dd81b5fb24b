# What Python asks of Julia itself, with the bundled package not loaded yet.

"""Call a function. (Called by Python directly, a `MethodError` of it would arrive as a TypeError.)"""
call(@nospecialize(f), @nospecialize(args...)) = f(args...)

"""
Call a function with keywords: their names in one string, and their values before the other arguments. PythonCall would
hand keywords over in the order of a hash table, each order of which Julia compiles anew.
"""
function call_with(@nospecialize(f), names::String, @nospecialize(values...))
    keys = Tuple(Symbol.(split(names)))
    n = length(keys)
    return f(values[(n + 1):end]...; NamedTuple{keys}(values[1:n])...)
end

evaluate(code) = Base.eval(@__MODULE__, Meta.parseall(code))

"""The name of an exception's type, and what it says, unless that fails too."""
function describe(error)
    kind = string(nameof(typeof(error)))
    return (kind, try; sprint(showerror, error); catch; kind; end)
end

"""Write to the process's standard error from now on, whatever it was when Julia started."""
take_stderr() = redirect_stderr(open(Libc.dup(RawFD(2))))

# Julia compiles into the first of its depots; where that does not do, one of ours (`spare`) is first meanwhile.
compiled_into() = joinpath(first(DEPOT_PATH), "compiled", "v$(VERSION.major).$(VERSION.minor)", "PyTuringVI")
function with_depot(f, spare)
    isnothing(spare) && return f()
    pushfirst!(DEPOT_PATH, spare)
    try
        return f()
    finally
        filter!(!=(spare), DEPOT_PATH)
    end
end

is_there(name, uuid) = !isnothing(Base.locate_package(Base.PkgId(Base.UUID(uuid), name)))

load(name, uuid, spare) = with_depot(() -> Base.require(Base.PkgId(Base.UUID(uuid), name)), spare)

"""
The command that compiles what loading the package would compile; nothing if that is done. An extension of ours is given
by its name alone: its UUID follows from our package's, `ours`.
"""
compile_command(executable, ours, name, uuid, extensions, spare) = with_depot(spare) do
    parent, id = Base.UUID(ours), Base.PkgId(Base.UUID(uuid), name)
    ids = [id; [Base.PkgId(Base.uuid5(parent, name), name) for name in String.(split(extensions))]]
    done(id) = haskey(Base.loaded_modules, id) || (try; Base.isprecompiled(id); catch; true; end)
    all(done, ids) && return nothing
    paths = "append!(empty!(DEPOT_PATH), $(repr(DEPOT_PATH))); append!(empty!(LOAD_PATH), $(repr(LOAD_PATH)))"
    require(name, uuid) = "Base.require(Base.PkgId(Base.UUID($(repr(string(uuid)))), $(repr(name))))"
    code = join((paths, require("PyTuringVI", parent), require(name, uuid)), "; ")
    julia = isnothing(executable) ? joinpath(Sys.BINDIR, Base.julia_exename()) : executable
    options = ("--project=" * dirname(Base.active_project()), "--startup-file=no", "-e", code)
    return join((Base.julia_cmd(julia).exec..., options...), '\0')
end
