--- Highlight groups, linked to those of the colour scheme.
local M = {}

M.links = {
  DshActive = "Normal", -- the path to the leaf
  DshInactive = "Comment", -- other branches
  DshUser = "Title", -- prompts, and the word before them
  DshAssistant = "Function", -- the word before an answer
  DshKind = "Type", -- the word before anything else
  DshTool = "Identifier",
  DshLabel = "Special",
  DshLeaf = "WarningMsg", -- the mark of the leaf
  DshError = "DiagnosticError",
  DshWarn = "DiagnosticWarn", -- interrupted
  DshGutter = "NonText",
  DshMatch = "Search",
  DshTitle = "Title", -- the session in use
  DshSession = "Normal", -- other sessions
  DshFacts = "Comment", -- format, age, size
  DshRunning = "DiagnosticOk",
  DshHint = "Comment",
}

function M.define()
  for name, link in pairs(M.links) do
    vim.api.nvim_set_hl(0, name, { link = link, default = true })
  end
end

--- Define the groups now and again with each colour scheme.
function M.setup()
  M.define()
  vim.api.nvim_create_autocmd("ColorScheme", {
    group = vim.api.nvim_create_augroup("dsh.highlights", {}),
    callback = M.define,
  })
end

return M
