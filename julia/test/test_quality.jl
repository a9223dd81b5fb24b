using Aqua: Aqua

# Stale dependencies and compat bounds are read from Project.toml. The check for persistent tasks builds a package around
# ours and resolves it against a registry, which a package found through LOAD_PATH does not have.
@testset "Aqua" begin
    Aqua.test_all(P; persistent_tasks=false)
end
