"""
    Layout(n_global, n_local, local_dim)

Order of the flat unconstrained vector: the globals `z`, then each local block `y_n` contiguously.

Throws an `ArgumentError` if a count is negative, if only one of `n_local` and `local_dim` is 0, or if there is no
variable at all.
"""
struct Layout
    n_global::Int
    n_local::Int
    local_dim::Int

    function Layout(n_global::Integer, n_local::Integer, local_dim::Integer)
        min(n_global, n_local, local_dim) >= 0 ||
            throw(ArgumentError("Layout: counts must be at least 0, got $((n_global, n_local, local_dim))."))
        (n_local == 0) == (local_dim == 0) ||
            throw(ArgumentError("Layout: n_local and local_dim must both be positive or both be 0."))
        n_global + n_local > 0 || throw(ArgumentError("Layout: there must be at least one variable."))
        return new(n_global, n_local, local_dim)
    end
end

"""Length `d = d_z + N d_y` of the flat vector."""
dim(layout::Layout) = layout.n_global + n_local_total(layout)

"""Number of local coordinates, `N d_y`."""
n_local_total(layout::Layout) = layout.n_local * layout.local_dim

"""Where `z` stands."""
global_range(layout::Layout) = 1:layout.n_global

"""Where all of `y_1..y_N` stand."""
local_range(layout::Layout) = (layout.n_global + 1):dim(layout)
